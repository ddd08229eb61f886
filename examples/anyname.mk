# make: builds anyname.so against the installed headers; make check: tests it; make install: installs it.
NAME = anyname
SOQUETE = soquete
PKG_CONFIG = pkg-config
CFLAGS = -O2 -g -Wall -Wextra

plugindir := $(shell $(PKG_CONFIG) --variable=plugindir soquete)
manifestdir := $(shell $(PKG_CONFIG) --variable=manifestdir soquete)

all: $(NAME).so

$(NAME).so: $(NAME).c
	$(CC) -std=c11 $(CFLAGS) $(shell $(PKG_CONFIG) --cflags soquete) -fPIC -fvisibility=hidden -shared -Wl,-Bsymbolic -o $@ $<

check: all
	$(SOQUETE) check ./$(NAME).so

install: all
	install -d $(DESTDIR)$(plugindir) $(DESTDIR)$(manifestdir)
	install -m 755 $(NAME).so $(DESTDIR)$(plugindir)
	install -m 644 $(NAME).ini $(DESTDIR)$(manifestdir)

uninstall:
	rm -f $(DESTDIR)$(plugindir)/$(NAME).so $(DESTDIR)$(manifestdir)/$(NAME).ini

clean:
	rm -f $(NAME).so

.PHONY: all check install uninstall clean
