# agentcgroup: build, install and test. `make` alone lists the targets.

PREFIX      ?= /usr
SYSCONFDIR  ?= /etc
DESTDIR     ?=
PYTHON      ?= python3
PYTHON_SITE ?= $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# musl starts a static program half a millisecond sooner than glibc, and the shim starts on every tool call.
STATIC_CC ?= $(if $(shell command -v musl-gcc),musl-gcc,cc) -static
CFLAGS    ?= -O2
CLANG      ?= clang
LLVM_STRIP ?= llvm-strip
WARNINGS   = -Wall -Wextra -Werror -std=gnu11

include runtime/shim/flags.mk

LIBEXEC   = $(PREFIX)/libexec/agentcgroup
SHARE     = $(PREFIX)/share/agentcgroup
HOOKS_DIR = $(PREFIX)/share/containers/oci/hooks.d
UNITS_DIR = $(PREFIX)/lib/systemd/system
USERS_DIR = $(PREFIX)/lib/sysusers.d
TMP_DIR   = $(PREFIX)/lib/tmpfiles.d
SELINUX_DIR = $(PREFIX)/share/selinux/packages

BASH_FILE = $(PREFIX)/share/bash-completion/completions/agentcgroup
FISH_FILE = $(PREFIX)/share/fish/vendor_completions.d/agentcgroup.fish
# zsh of Debian reads another folder than that of others.
ZSH_DIR  ?= $(PREFIX)/share/zsh/$(if $(wildcard /etc/debian_version),vendor-completions,site-functions)

HOOK_SOURCES = $(wildcard hooks/*.c)
SHIM_SOURCES = $(wildcard runtime/shim/*.c)
C_HEADERS    = $(wildcard hooks/*.h runtime/shim/*.h)
BPF_SOURCES  = $(wildcard bpf/*.bpf.c)
BPF_OBJECTS  = $(BPF_SOURCES:bpf/%.bpf.c=build/bpf/%.o)
PROGRAMS     = $(if $(HOOK_SOURCES),build/agentcgroup-hook) $(if $(SHIM_SOURCES),build/agentcgroup-shim) \
	build/agentcgroup-load build/agentcgroup-runtime

# Packages need them; elsewhere nobody should need go-md2man for an installation.
MD2MAN ?= $(shell command -v go-md2man)
PAGES   = $(patsubst docs/man/%.md,build/man/%,$(wildcard docs/man/*.md))
MAN_DIR = $(PREFIX)/share/man

VENV   = build/venv
VM     = $(PYTHON) tests/vm/run.py
KERNEL ?= all
# TEST=path or TEST="-k name" selects tests in the VMs.
TEST   ?=

.DEFAULT_GOAL := help
.PHONY: help setup build install uninstall srpm rpm deb kubernetes packages test lint unit vm vm-shell demo soak fuzz bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## install what building and testing need, where it is missing
	@sh tests/vm/harness/setup-host.sh
	@$(MAKE) --no-print-directory $(VENV)/ready

build: $(PROGRAMS) $(BPF_OBJECTS) $(if $(MD2MAN),$(PAGES)) ## compile the hook, the shim and the BPF objects; manual pages

# The hook knows where the shim is, so it is compiled again for another PREFIX.
build/libexec: FORCE
	@mkdir -p $(@D)
	@echo '$(LIBEXEC)' | cmp -s - $@ || echo '$(LIBEXEC)' >$@

FORCE:

build/agentcgroup-hook: $(HOOK_SOURCES) $(C_HEADERS) build/libexec
	$(STATIC_CC) $(CFLAGS) $(WARNINGS) -DLIBEXECDIR='"$(LIBEXEC)"' -o $@ $(HOOK_SOURCES)

build/agentcgroup-shim: $(SHIM_SOURCES) $(C_HEADERS)
	@mkdir -p $(@D)
	$(STATIC_CC) $(CFLAGS) $(WARNINGS) $(SHIM_FLAGS) -o $@ $(SHIM_SOURCES)

RUNTIME_SOURCES = $(wildcard hooks/runtime/*.c) $(patsubst %,hooks/%.c,json files error journal pod)

build/agentcgroup-runtime: $(RUNTIME_SOURCES) $(C_HEADERS) $(wildcard hooks/runtime/*.h) build/libexec
	$(STATIC_CC) $(CFLAGS) $(WARNINGS) -DLIBEXECDIR='"$(LIBEXEC)"' -o $@ $(RUNTIME_SOURCES)

build/agentcgroup-load: runtime/load/load.c
	@mkdir -p $(@D)
	$(STATIC_CC) $(CFLAGS) $(WARNINGS) -o $@ $<

# CO-RE: the running kernel's own layouts are filled in when an object is loaded, so that it is built once for all.
BPF_FLAGS = -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -fdebug-prefix-map=$(CURDIR)=. \
	-idirafter /usr/include/$(shell cc -print-multiarch)

build/bpf/%.o: bpf/%.bpf.c $(wildcard bpf/*.h)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_FLAGS) -c -o $@ $<
	$(LLVM_STRIP) -g $@

build/man/%: docs/man/%.md docs/man/manpage.py $(wildcard docs/*.md)
	@mkdir -p $(@D)
	$(PYTHON) docs/man/manpage.py $< >$@.md && $(MD2MAN) -in $@.md -out $@ && rm $@.md

# $(call install_files,MODE,FILES,FOLDER): nothing to do where there are no such files.
install_files = $(if $(strip $(2)),install -p -D -m $(1) -t $(DESTDIR)$(3) $(2))
# $(call install_program,FILE): by rename, since engines and shells may start it at any moment.
install_program = install -p -m 755 $(1) $(DESTDIR)$(LIBEXEC)/$(notdir $(1)).new \
	&& mv -f $(DESTDIR)$(LIBEXEC)/$(notdir $(1)).new $(DESTDIR)$(LIBEXEC)/$(notdir $(1))
# $(call launcher,PATH,MODULE): a command that runs MODULE's main().
launcher = printf '\#!/usr/bin/python3\nimport sys\n\nfrom $(2) import main\n\nsys.exit(main())\n' >$(DESTDIR)$(1) \
	&& chmod 755 $(DESTDIR)$(1)
PACKAGE = $(DESTDIR)$(PYTHON_SITE)/agentcgroup

install: build ## install below DESTDIR and PREFIX
	@install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(LIBEXEC) $(DESTDIR)$(PYTHON_SITE) $(DESTDIR)$(HOOKS_DIR)
	$(foreach program,$(PROGRAMS),$(call install_program,$(program)) &&) true
	rm -rf $(PACKAGE) && cp -pR runtime/agentcgroup $(PACKAGE)
	find $(PACKAGE) -name __pycache__ -prune -exec rm -rf {} +
	$(call launcher,$(PREFIX)/bin/agentcgroup,agentcgroup.cli)
	$(call launcher,$(LIBEXEC)/agentcgroupd,agentcgroup.daemon)
	ln -sf ../libexec/agentcgroup/agentcgroupd $(DESTDIR)$(PREFIX)/bin/agentcgroupd
	$(call install_files,644,$(wildcard oci-config/policies.d/*.yaml),$(SHARE)/policies.d)
	$(call install_files,644,$(wildcard oci-config/schemas/*.json),$(SHARE)/schemas)
	$(call install_files,644,$(BPF_OBJECTS),$(SHARE)/bpf)
	rm -rf $(DESTDIR)$(SHARE)/examples && cp -pR oci-config/examples $(DESTDIR)$(SHARE)
	sed -i 's|/usr/libexec/agentcgroup|$(LIBEXEC)|' $(DESTDIR)$(SHARE)/examples/docker/daemon.json
	$(call install_files,644,$(wildcard oci-config/systemd/*),$(UNITS_DIR))
	$(call install_files,644,oci-config/sysusers.d/agentcgroup.conf,$(USERS_DIR))
	$(call install_files,644,oci-config/tmpfiles.d/agentcgroup.conf,$(TMP_DIR))
	$(call install_files,644,packaging/selinux/agentcgroup.cil,$(SELINUX_DIR))
	sed -i 's|/usr/libexec/agentcgroup|$(LIBEXEC)|' $(DESTDIR)$(UNITS_DIR)/agentcgroupd.service
	install -p -D -m 644 packaging/completions/agentcgroup.bash $(DESTDIR)$(BASH_FILE)
	install -p -D -m 644 packaging/completions/agentcgroup.zsh $(DESTDIR)$(ZSH_DIR)/_agentcgroup
	install -p -D -m 644 packaging/completions/agentcgroup.fish $(DESTDIR)$(FISH_FILE)
	$(if $(MD2MAN),,@echo "manual pages are left out: go-md2man is missing" >&2)
	for page in $(if $(MD2MAN),$(PAGES)); do \
		install -p -D -m 644 -t $(DESTDIR)$(MAN_DIR)/man$${page##*.} $$page || exit 1; \
	done
	test -e $(DESTDIR)$(SYSCONFDIR)/agentcgroup/agentcgroup.yaml \
		|| { $(or $(call install_files,644,$(wildcard oci-config/agentcgroup.yaml),$(SYSCONFDIR)/agentcgroup),:); }
# Last and by rename: engines read the folder at each container start, and a JSON that names a missing hook, or half a
# JSON, stops containers from starting.
	for json in $(wildcard oci-config/hooks.d/*.json); do \
		new=$(DESTDIR)$(HOOKS_DIR)/$${json##*/}; \
		sed 's|/usr/libexec/agentcgroup|$(LIBEXEC)|' $$json >$$new.tmp && mv -f $$new.tmp $$new || exit 1; \
	done

# The JSON first: engines refuse to start containers while it names a hook that is gone.
uninstall: ## remove what install put there; configuration, policies of your own and records stay
	rm -f $(DESTDIR)$(HOOKS_DIR)/50-agentcgroup.json
	$(if $(DESTDIR),,-$(PREFIX)/bin/agentcgroup bpf detach)
	rm -f $(DESTDIR)$(UNITS_DIR)/agentcgroupd.service $(DESTDIR)$(UNITS_DIR)/agentcgroupd.socket
	rm -f $(DESTDIR)$(UNITS_DIR)/agentcgroup.slice $(DESTDIR)$(PREFIX)/bin/agentcgroup $(DESTDIR)$(PREFIX)/bin/agentcgroupd
	rm -f $(DESTDIR)$(USERS_DIR)/agentcgroup.conf $(DESTDIR)$(TMP_DIR)/agentcgroup.conf $(DESTDIR)$(SELINUX_DIR)/agentcgroup.cil
	rm -f $(DESTDIR)$(BASH_FILE) $(DESTDIR)$(FISH_FILE) $(DESTDIR)$(ZSH_DIR)/_agentcgroup
	rm -f $(foreach page,$(notdir $(PAGES)),$(DESTDIR)$(MAN_DIR)/man$(patsubst .%,%,$(suffix $(page)))/$(page))
	rm -rf $(DESTDIR)$(LIBEXEC) $(DESTDIR)$(SHARE) $(PACKAGE)

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
RPM      = build/rpm
RPMBUILD = rpmbuild --define '_topdir $(CURDIR)/$(RPM)' \
	$(if $(wildcard /etc/debian_version),--nodeps --load packaging/rpm/macros.debian)
# An rpm of a higher release, for tests of upgrades: make rpm RELEASE=2
RELEASE ?= 1
TREE    ?= HEAD

# What is committed, so that what is built here is built by others as well.
$(RPM)/SOURCES: FORCE
	@rm -rf $(RPM) && mkdir -p $@
	git archive --prefix=agentcgroup-$(VERSION)/ -o $@/agentcgroup-$(VERSION).tar.gz $(TREE)
	sed 's/^\(Release: *\)1/\1$(RELEASE)/' packaging/rpm/agentcgroup.spec >$@/agentcgroup.spec

srpm: $(RPM)/SOURCES ## the source package, of what is committed, into build/rpm/SRPMS
	$(RPMBUILD) --quiet -bs $</agentcgroup.spec
	@ls $(RPM)/SRPMS/*.rpm

rpm: srpm ## the packages, into build/rpm/RPMS
	$(RPMBUILD) --quiet --rebuild $(RPM)/SRPMS/*.rpm
	@find $(RPM)/RPMS -name '*.rpm'

DEB      = build/deb
DEB_NAME = agentcgroup_$(VERSION)-$(RELEASE)_$(shell dpkg --print-architecture 2>/dev/null).deb

deb: build ## the package for Debian, into build/deb
	@test -n '$(MD2MAN)' || { echo "make deb: go-md2man is missing: make setup" >&2; exit 1; }
	@rm -rf $(DEB) && mkdir -p $(DEB)/root/DEBIAN
	@$(MAKE) --no-print-directory --silent install DESTDIR=$(CURDIR)/$(DEB)/root SYSCONFDIR=/etc PREFIX=/usr \
		PYTHON_SITE=/usr/lib/python3/dist-packages
	@install -d $(DEB)/root/etc/agentcgroup/policies.d
	@install -p -D -m 644 -t $(DEB)/root/usr/share/doc/agentcgroup README.md LICENSE LICENSES/* docs/*.md packaging/grafana/*.json
	@find $(DEB)/root/usr/share/man -type f -exec gzip -9n {} +
	@install -p -m 755 -t $(DEB)/root/DEBIAN packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm
	@install -p -m 644 -t $(DEB)/root/DEBIAN packaging/debian/conffiles
	@sed 's/@VERSION@/$(VERSION)-$(RELEASE)/; s/@ARCHITECTURE@/$(shell dpkg --print-architecture)/' \
		packaging/debian/control.in >$(DEB)/root/DEBIAN/control
	@dpkg-deb --root-owner-group --build $(DEB)/root $(DEB)/$(DEB_NAME) >/dev/null
	@rm -rf $(DEB)/root && ls $(DEB)/$(DEB_NAME)

kubernetes: ## what the image for nodes of Kubernetes holds, into build/kubernetes
	@rm -rf build/kubernetes && $(MAKE) --no-print-directory --silent install DESTDIR=$(CURDIR)/build/kubernetes \
		PREFIX=/usr/local SYSCONFDIR=/etc PYTHON_SITE=/usr/lib/python3/dist-packages
	@install -p -m 755 packaging/kubernetes/agentcgroup-node build/kubernetes/usr/local/bin

# Two releases, for the tests of installing and upgrading; of what is in the checkout, committed or not.
packages:
	@mkdir -p build; tree=$$(git stash create 2>/dev/null); for release in 1 2; do \
		$(MAKE) --no-print-directory rpm RPM=build/packages/$$release RELEASE=$$release TREE=$${tree:-HEAD} && \
		$(MAKE) --no-print-directory deb DEB=build/packages/$$release/DEBS RELEASE=$$release || exit 1; \
	done >build/packages.log 2>&1 || { tail -20 build/packages.log; exit 1; }
	@! command -v rpmlint >/dev/null || rpmlint --strict -c packaging/rpm/rpmlint.toml packaging/rpm/agentcgroup.spec \
		$$(find build/packages/1 -name '*.rpm') >build/rpmlint.log || { cat build/rpmlint.log; exit 1; }

# The unit tests mostly wait, so they take no longer beside the VMs.
test: setup lint build ## everything that CI runs
	@echo "unit tests run beside the VMs; what they say comes last"
	@$(MAKE) --no-print-directory unit >build/unit.log 2>&1 & unit=$$!; \
	$(MAKE) --no-print-directory vm; vm=$$?; \
	wait $$unit; unit=$$?; cat build/unit.log; exit $$((vm + unit))

$(VENV)/ready: pyproject.toml
	@echo "setup: Python tools into $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(VENV)/bin/pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

lint: $(VENV)/ready ## ruff and mypy
	$(VENV)/bin/ruff check runtime tests docs
	$(VENV)/bin/ruff format --check runtime tests docs
	$(VENV)/bin/mypy --strict runtime/agentcgroup

unit: $(VENV)/ready ## tests that need no VM
	$(VENV)/bin/pytest tests/unit

vm: packages ## tests in VMs with KERNEL=7|6.12|all; TEST= selects some
	$(VM) test --kernel $(KERNEL) $(TEST)

soak: ## by hand, about two hours: thousands of calls, in a VM of KERNEL=7|6.12|all
	$(VM) test --kernel $(KERNEL) --deadline 14400 tests/soak -s

fuzz: $(VENV)/ready ## by hand: fuzzers of all parsers for TIME=60 seconds
	$(VENV)/bin/python tests/fuzz/fuzz.py --time $(or $(TIME),60)

bench: build ## by hand, on an idle machine as root: what a call, a start and the daemon cost; agents under pressure
	$(PYTHON) bench/shim.py
	$(PYTHON) bench/hook.py
	$(PYTHON) bench/daemon.py rate
	$(PYTHON) bench/daemon.py registered
	$(PYTHON) bench/daemon.py agents
	$(VM) exec -- python3 bench/podman.py
	$(VM) exec -- sh -c 'agentcgroup bench replay --results /root/replay.jsonl && agentcgroup bench report /root/replay.jsonl'

vm-shell: ## a shell in a fresh VM with the product installed
	$(VM) shell $(if $(filter-out all,$(KERNEL)),--kernel $(KERNEL))

demo: setup ## the main job in a fresh VM; HOST=1: on this host, where podman and cgroup v2 are
	$(if $(HOST),bash tests/vm/demo.sh host,$(VM) exec -- bash tests/vm/demo.sh)

clean: ## remove what was built here; the VM images stay in the cache
	rm -rf build
