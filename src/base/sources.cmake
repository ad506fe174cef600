set(MEGADP_base_SOURCES status.cc)
