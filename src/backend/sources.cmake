set(MEGADP_backend_SOURCES)
