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
// SWIG's own takes any userdata for an object of its own. Those of its classes have a table of functions.
%{
static bool megadp_is_foreign(lua_State* L, int index) {
  if (!lua_isuserdata(L, index)) return false;
  const bool known = luaL_getmetafield(L, index, ".fn") != LUA_TNIL;
  if (known) lua_pop(L, 1);
  return !known;
}
#undef SWIG_ConvertPtr
#define SWIG_ConvertPtr(L, index, pointer, type, flags) \
  (megadp_is_foreign(L, index) ? SWIG_ERROR : SWIG_Lua_ConvertPtr(L, index, pointer, type, flags))
#define SWIG_Lua_typename(L, index) (megadp_is_foreign(L, index) ? luaL_typename(L, index) : (SWIG_Lua_typename)(L, index))
%}
// A null pointer is no object. What is null says so here, and not where it is used.
%typemap(check) SWIGTYPE *, SWIGTYPE & %{
  if (!$1) {
    lua_pushfstring(L, "$1_name of $symname is nil; it must be a $1_basetype");
    SWIG_fail;
  }
%}
// SWIG's own cuts what is not whole.
%typemap(in, checkfn="lua_isnumber") long long, int %{
  {
    int whole = 0;
    const lua_Integer number = lua_tointegerx(L, $input, &whole);
    $1 = static_cast<$1_ltype>(number);
    if (!whole || $1 != number) {
      lua_pushfstring(L, "$1_name of $symname is %s; it must be a whole number of %d bits",
                      lua_tostring(L, $input), static_cast<int>(8 * sizeof($1)));
      SWIG_fail;
    }
  }
%}
// SWIG's own takes a number, and makes an empty text of it.
%typemap(in, checkfn="lua_isstring") const std::string& (std::string text) %{
  {
    size_t length = 0;
    const char* const bytes = lua_tolstring(L, $input, &length);
    text.assign(bytes, length);
    $1 = &text;
  }
%}
%typemap(out) long long "lua_pushinteger(L, $1); SWIG_arg++;"
// As Lua itself sees it: a table may have its elements by __index and __len. To be called by lua_pcall, since these may fail.
%{
static int megadp_plain_list(lua_State* L) {
  const lua_Integer count = luaL_len(L, 1);
  lua_newtable(L);
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_geti(L, 1, i);
    lua_rawseti(L, 2, i);
  }
  return 1;
}
%}
%typemap(in, checkfn="lua_istable") const std::vector<double>& (std::vector<double> list) %{
  if (lua_getmetatable(L, $input)) {
    lua_pop(L, 1);
    lua_pushcfunction(L, megadp_plain_list);
    lua_pushvalue(L, $input);
    if (lua_pcall(L, 1, 1, 0) != LUA_OK) SWIG_fail;
    lua_replace(L, $input);
  }
  list.resize(lua_rawlen(L, $input));
  for (size_t i = 0; i < list.size(); ++i) {
    const int type = lua_rawgeti(L, $input, static_cast<lua_Integer>(i + 1));
    if (type != LUA_TNUMBER) {
      lua_pushfstring(L, "$1_name of $symname: element %I is a %s; lists are of numbers",
                      static_cast<LUAI_UACINT>(i + 1), lua_typename(L, type));
      SWIG_fail;
    }
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
