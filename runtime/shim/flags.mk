# How to link the shim so that its exec is cheap: two segments in seven pages, nothing to relocate or to protect.
# fork+exec to main(), p50 of 800 on a loaded machine: 139 us with musl-gcc's defaults, 130 with these, 121 without any
# libc; static glibc is at 489 for the whole life of an empty program, musl at 118.
SHIM_FLAGS = -no-pie -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables -s \
	-Wl,--gc-sections -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,norelro
