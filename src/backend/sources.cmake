set(MEGADP_backend_SOURCES registry.cc)
