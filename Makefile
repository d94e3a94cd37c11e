# The few commands a newcomer needs. `make test` is what every commit must pass.

.PHONY: build test demo bench install clean

PREFIX ?= /usr/local
TARGET = $${CARGO_TARGET_DIR:-target}/release

build:
	cargo build --release --workspace

test:
	@tests/all

# A short, scripted show: format, mount, use, crash, recover.
demo:
	@scripts/demo

# Compares this directory's file system with a Shoal store; DIR=/path measures another place.
bench: build
	@scripts/bench $(DIR)

# The programs, the helper `mount -t fuse.shoal` looks for, and the manual pages.
install: build
	install -D -t $(DESTDIR)$(PREFIX)/bin $(TARGET)/shoal $(TARGET)/shoal-lab
	install -d $(DESTDIR)/sbin
	ln -sf $(PREFIX)/bin/shoal $(DESTDIR)/sbin/mount.fuse.shoal
	$(TARGET)/shoal man $(TARGET)/man
	$(TARGET)/shoal-lab man $(TARGET)/man
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/man/man1 $(TARGET)/man/*.1
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/man/man8 $(TARGET)/man/*.8

clean:
	cargo clean
