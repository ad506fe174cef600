set(MEGADP_core_SOURCES grid.cc layout.cc param.cc plan.cc plan_json.cc registration.cc)
