# SPDX-License-Identifier: Apache-2.0
# A reader of JSON for the tests, since the package depends on nothing: objects become Dicts, arrays Vectors, null nothing.

function read_json(text)
    value, at = json_value(text, json_space(text, 1))
    json_space(text, at) > ncodeunits(text) || error("something follows the JSON, at byte $at")
    return value
end

function json_space(text, at)
    while at <= ncodeunits(text) && text[at] in (' ', '\n', '\r', '\t')
        at += 1
    end
    return at
end

function json_value(text, at)
    first = text[at]
    first == '{' && return json_items(json_member, Dict{String,Any}(), text, at, '}')
    first == '[' && return json_items(json_value, Any[], text, at, ']')
    first == '"' && return json_string(text, at)
    for (word, value) in (("true", true), ("false", false), ("null", nothing))
        startswith(SubString(text, at), word) && return value, at + length(word)
    end
    found = match(r"\G-?\d+(\.\d+)?([eE][-+]?\d+)?", text, at)
    found === nothing && error("no JSON at byte $at")
    whole = found[1] === nothing && found[2] === nothing
    return parse(whole ? Int : Float64, found.match), at + ncodeunits(found.match)
end

function json_member(text, at)
    key, at = json_string(text, at)
    at = json_space(text, at)
    text[at] == ':' || error("no ':' at byte $at")
    value, at = json_value(text, json_space(text, at + 1))
    return key => value, at
end

function json_items(read_one, items, text, at, close)
    at = json_space(text, at + 1)
    while text[at] != close
        item, at = read_one(text, at)
        push!(items, item)
        at = json_space(text, at)
        text[at] == close && break
        text[at] == ',' || error("no ',' at byte $at")
        at = json_space(text, at + 1)
    end
    return items, at + 1
end

function json_string(text, at)
    found = match(r"\G\"((?:[^\"\\]|\\.)*)\"", text, at)
    found === nothing && error("no string at byte $at")
    return unescape_string(replace(found[1], "\\/" => "/")), at + ncodeunits(found.match)
end
