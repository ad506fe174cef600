// SPDX-License-Identifier: Apache-2.0
/* Lua: an error is a table with code, name, text, rank, bucket, param and operation, and a __tostring. Lists of numbers are tables. */
%{
static void megadp_push_failure(lua_State* L, const megadp::Failure& failure) {
  lua_newtable(L);
  lua_pushinteger(L, failure.code);
  lua_setfield(L, -2, "code");
  lua_pushstring(L, failure.name());
  lua_setfield(L, -2, "name");
  lua_pushstring(L, failure.text);
  lua_setfield(L, -2, "text");
  lua_pushinteger(L, failure.rank);
  lua_setfield(L, -2, "rank");
  lua_pushinteger(L, failure.bucket);
  lua_setfield(L, -2, "bucket");
  lua_pushinteger(L, failure.param);
  lua_setfield(L, -2, "param");
  lua_pushinteger(L, failure.operation);
  lua_setfield(L, -2, "operation");
  if (luaL_newmetatable(L, "megadp.Error")) {
    lua_pushcfunction(L, [](lua_State* state) {
      lua_getfield(state, 1, "name");
      lua_pushstring(state, ": ");
      lua_getfield(state, 1, "text");
      lua_concat(state, 3);
      return 1;
    });
    lua_setfield(L, -2, "__tostring");
  }
  lua_setmetatable(L, -2);
}
%}

%typemap(argout) megadp::Failure& failure {
  if ($1->failed()) {
    megadp_push_failure(L, *$1);
    SWIG_fail;
  }
}
%typemap(in, checkfn="lua_istable") const std::vector<double>& (std::vector<double> list) %{
  list.resize(lua_rawlen(L, $input));
  for (size_t i = 0; i < list.size(); ++i) {
    lua_rawgeti(L, $input, static_cast<lua_Integer>(i + 1));
    list[i] = lua_tonumber(L, -1);
    lua_pop(L, 1);
  }
  $1 = &list;
%}
%typemap(out) std::vector<double> %{
  lua_newtable(L);
  for (size_t i = 0; i < (&$1)->size(); ++i) {
    lua_pushnumber(L, (*&$1)[i]);
    lua_rawseti(L, -2, static_cast<lua_Integer>(i + 1));
  }
  SWIG_arg++;
%}
