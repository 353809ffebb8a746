"""What the kernel does for us by itself: objects built from bpf/, loaded and pinned here, read by the daemon."""
