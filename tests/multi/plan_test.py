# SPDX-License-Identifier: Apache-2.0
# `megadp plan` for parameters from files: lists of sizes, safetensors headers and their index; what malformed ones are told; and memory that
# does not grow with what is not printed.
# Usage: plan_test.py PATH_TO_MEGADP [unittest arguments]
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import unittest

from launcher_variables import without_launcher

MEGADP = ""
LIMIT = 120
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8, "BOOL": 1}


def plan(*arguments, given=None, address_space=None, stdout=subprocess.PIPE):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    stdin = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    return subprocess.run([MEGADP, "plan", *arguments], env=without_launcher(), stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=LIMIT,
                          preexec_fn=limit if address_space else None, **stdin)


def safetensors(tensors, metadata=None):
    """The file's bytes, without the data; tensors: name to (dtype, shape)."""
    header, at = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return raw(json.dumps(header))


def raw(header, length=None):
    encoded = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded


class PlanTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, content=None):
        at = os.path.join(self.folder, name)
        if content is not None:
            with open(at, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
        return at

    def answer(self, *arguments, **more):
        done = plan(*arguments, "--json", **more)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def refused(self, *arguments, words=(), code=2, **more):
        done = plan(*arguments, **more)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertRegex(done.stderr, r"^megadp plan: [^\n]+\n")
        for word in words:
            self.assertIn(word, done.stderr)


class Sizes(PlanTest):
    LIST = "# a model\n1000\n\nwte 10x50 # 500\n\t300\r\n"

    def test_lists(self):
        expected = self.answer("--sizes", "1000,500,300", "--dp", "4")
        self.assertEqual(self.answer("--sizes", "@" + self.path("list", self.LIST), "--dp", "4"), expected)
        self.assertEqual(self.answer("--sizes", "@" + self.path("list", self.LIST.rstrip("\r\n")), "--dp", "4"), expected)
        self.assertEqual(self.answer("--sizes", "-", "--dp", "4", given=self.LIST), expected)

    def test_many(self):
        count = 300_000
        whole = self.answer("--sizes", "-", "--dp", "2", given="3\n" * count)
        self.assertEqual([len(arena["params"]) for arena in whole["arenas"]], [count])

    def test_malformed_lists(self):
        for line, words in (("x", ["line 2", "'x'"]), ("-1", ["'-1'"]), ("a b c", ["'a b c'"]), ("1x", ["'1x'"]), ("x1", ["'x1'"]), ("1.5", ["'1.5'"]),
                            ("9223372036854775808", ["line 2"]), ("1" * 5000, ["line 2", "4096"]), ("9223372036854775807x9", ["parameter 1"]),
                            ("0 1", ["same name"]), ("1\0", ["line 2"])):
            with self.subTest(line[:20]):
                self.refused("--sizes", "@" + self.path("list", f"1\n{line}\n"), words=words)
        self.refused("--sizes", "@" + self.path("list", "# nothing\n"), words=["holds no sizes"])
        self.refused("--sizes", "-", words=["standard input holds no sizes"])
        self.refused("--sizes", "@" + self.path("absent"), words=["absent", "No such file"], code=1)
        self.refused("--sizes", "@" + self.folder, words=["Is a directory"], code=1)
        self.refused("--sizes", "@", words=["cannot be opened"], code=1)
        self.refused("--sizes", "@/dev/zero", words=["4096"], address_space=256 << 20)

    def test_use_order(self):
        def placed(*arguments):
            whole = self.answer(*arguments, "--dp", "2", "--bucket-size", "400")
            return [(p["begin"], p["end"], p["bucket"]) for p in whole["arenas"][0]["params"]], [p["index"] for p in whole["arenas"][0]["params"]]
        as_used, numbers = placed("--sizes", "300,1000,500")
        self.assertEqual(numbers, [2, 1, 0])
        self.assertEqual(placed("--sizes", "500,1000,300", "--use-order", "reversed"), (as_used, [0, 1, 2]))
        self.assertEqual(placed("--sizes", "1000,500,300", "--use-order", "7,9,0"), (as_used, [1, 0, 2]))
        for order, words in (("1", ["1 numbers", "3 parameters"]), ("1,2", ["2 numbers"]), ("1,2,3,4", ["4 numbers"]), ("0,-1,2", ["'-1' for parameter 1"]),
                             ("0,1,2147483648", ["'2147483648' for parameter 2"]), ("reversed,1,2", ["'reversed' for parameter 0"])):
            with self.subTest(order):
                self.refused("--sizes", "1,2,3", "--use-order", order, words=words)

    def test_one_of_them(self):
        self.refused(words=["--sizes", "--model"])
        self.refused("--sizes", "1", "--model", "m", words=["--sizes", "--model"])


class Layers(PlanTest):
    """What a layer saves, sends and keeps is measured on the real layers by unit_tp_linear, and what it saves by capi_tp_linear too."""
    MLP = "fc column 1024x4096 bias; out row 4096x1024 bias"

    def one(self, layer, *arguments):
        return self.answer("--layers", layer, *arguments)["layers"][0]

    def test_saved_as_measured(self):
        # 32 of these inputs take 32 MiB in capi_tp_linear, with a sequence of so many ranks so much less.
        for tp in (1, 2, 4):
            arguments = ("--tp", str(tp), "--tokens", "512")
            self.assertEqual(self.one("column 512x512", *arguments)["saved"], 1 << 20)
            self.assertEqual(self.one("column 512x512", "--sequence", *arguments)["saved"], (1 << 20) // tp)
            self.assertEqual(self.one("column 512x512 frozen", *arguments)["saved"], 0)

    def test_a_pair(self):
        for tp, width in (("1", "f32"), ("2", "f32"), ("4", "bf16")):
            p, size = int(tp), {"f32": 4, "bf16": 2}[width]
            whole = 2048 * 1024 * size
            once = whole * (p - 1) // p
            common = ("--layers", self.MLP, "--tp", tp, "--tokens", "2048", "--param-dtype", width)
            fc, out = self.answer(*common)["layers"]
            self.assertEqual((fc["shape"], out["shape"]), ([4096 // p, 1024], [1024, 4096 // p]))
            self.assertEqual((fc["weight"], fc["bias"], out["bias"]), (4096 * 1024 * size // p, 4096 * size // p, 1024 * size))
            self.assertEqual((fc["saved"], out["saved"]), (whole, 4 * whole // p))
            self.assertEqual((fc["sent_forward"], fc["sent_backward"], out["sent_forward"], out["sent_backward"]), (0, 2 * once, 2 * once, 0))
            fc, out = self.answer(*common, "--sequence")["layers"]
            self.assertEqual((fc["saved"], out["saved"]), (whole // p, 4 * whole // p))
            self.assertEqual((fc["sent_forward"], fc["sent_backward"], out["sent_forward"], out["sent_backward"]), (once, 2 * once, once, once))

    def test_all_and_the_buffer(self):
        several = self.answer("--layers", self.MLP + "; fc2 column 1024x4096 times=3; loss cross-entropy 100", "--tp", "2", "--dp", "4", "--tokens", "64")
        by_name = {layer["name"]: layer for layer in several["layers"]}
        for field in ("weight", "bias", "saved", "sent_forward", "sent_backward"):
            self.assertEqual(several["all"][field], sum(layer[field] * layer["times"] for layer in several["layers"]), field)
        self.assertEqual((by_name["loss"]["saved"], by_name["loss"]["sent_forward"], by_name["loss"]["sent_backward"]), (64 * 8, 65 * 16, 0))
        self.assertGreaterEqual(several["all"]["scratch"], max(layer["scratch"] for layer in several["layers"]))
        self.assertLess(several["all"]["scratch"], sum(layer["scratch"] for layer in several["layers"]))
        sizes = ["2048x1024", "2048", "1024x2048", "1024"] + ["2048x1024"] * 3
        expected = self.answer("--sizes", "@" + self.path("sizes", "\n".join(sizes)), "--dp", "4")
        self.assertEqual(several["plan"]["arenas"], expected["arenas"])
        self.assertEqual(several["workspace"], 32 << 20)
        as_list = self.answer("--layers", "-", "--tp", "2", "--tokens", "64", given="# a pair\n" + self.MLP.replace("; ", " # one\n\n"))
        self.assertEqual(as_list, self.answer("--layers", self.MLP, "--tp", "2", "--tokens", "64"))
        alone = self.answer("--layers", "column 8x8 frozen; cross-entropy 8", "--tokens", "4")
        self.assertNotIn("plan", alone)

    def test_text(self):
        done = plan("--layers", self.MLP, "--tp", "2", "--tokens", "64", "--sequence")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = [line.split() for line in done.stdout.splitlines()]
        fc = self.answer("--layers", self.MLP, "--tp", "2", "--tokens", "64", "--sequence")["layers"][0]
        self.assertIn(["fc", "column", "2048x1024", "1"] + [str(fc["weight"] + fc["bias"])] + [str(fc[field]) for field in
                      ("saved", "sent_forward", "sent_backward", "scratch")], lines)
        self.assertIn("4 parameters", done.stdout)

    def test_refused(self):
        for layers, words in (("", ["--sizes", "--layers"]), (" ; ", ["holds no layers"]), ("columns 8x8", ["layer 1", "'columns 8x8'", "cross-entropy"]), ("a b column 8x8", ["KIND"]),
                              ("column", ["the size of column is ''", "INxOUT"]), ("column 8", ["'8'"]), ("column 8x", ["'8x'"]), ("column 0x8", ["'0x8'"]),
                              ("column 8x8x8", ["'8x8x8'"]), ("column 8x-8", ["'8x-8'"]), ("column 2147483649x8", ["2147483648"]), ("cross-entropy 8x8", ["CLASSES"]),
                              ("column 8x7", ["layer 1", "out_features is 7", "6 or 8"]), ("row 8x8; row 7x8", ["layer 2", "in_features is 7"]), ("embedding 7x8", ["config.rows is 7", "8 would"]),
                              ("column 8x8 blocks=4,2", ["sum of config.blocks is 6"]), ("column 8x8 blocks=6,2", ["sizes that differ"]), ("column 8x8 blocks=5,3 frozen", ["blocks[0] is 5"]),
                              ("column 8x8 blocks=4,", ["'blocks=4,'"]), ("column 8x8 blocks", ["'blocks' is no word"]), ("column 8x8 bias=1", ["'bias=1' is no word"]),
                              ("column 8x8 whole-input", ["no word for column", "gather-output"]), ("row 8x8 gather-output", ["no word for row"]), ("embedding 8x8 bias", ["no word for embedding"]),
                              ("column 8x8 times=0", ["'times=0'", "from 1 to"]), ("column 8x8 times=9999999", ["from 1 to"]), ("a column 8x8; a column 8x8", ["same name"]),
                              ("column 2147483648x2147483648", ["more elements than can be counted"]),
                              ("column 268435456x268435456 times=1048576", ["more bytes than can be counted"]), ("a column 8x8 bias times=1048576; " * 9, ["more than 16777216 parameters"])):
            with self.subTest(layers[:40]):
                self.refused("--layers", layers, "--tp", "2", "--tokens", "4", words=words)
        self.refused("--layers", "row 8x8 whole-input", "--sequence", "--tokens", "4", words=["WHOLE_INPUT"])
        self.refused("--layers", "row 8x8", "--sequence", "--tokens", "5", "--tp", "2", words=["--tokens is 5", "2 ranks"])
        self.refused("--layers", "row 8x8", words=["--tokens"])
        self.refused("--layers", "row 8x8", "--tokens", "4", "--param-dtype", "f16", words=["f16"])
        self.refused("--layers", "row 8x8", "--sizes", "8", "--tokens", "4", words=["either"])
        for alone in (("--tp", "2"), ("--tokens", "2"), ("--sequence",)):
            self.refused("--sizes", "8", *alone, words=[alone[0], "--layers"])
        self.refused("--layers", "@" + self.path("list", "column 8x8\nrow\n"), "--tokens", "4", words=["line 2", "size of row"])
        self.refused("--layers", "@" + self.path("list", "# none\n"), "--tokens", "4", words=["holds no layers"])
        self.refused("--layers", "@" + self.path("absent"), "--tokens", "4", words=["No such file"], code=1)


class Model(PlanTest):
    TENSORS = {"wte": ("F32", [10, 50]), "h.0.weight": ("BF16", [30, 20]), "scale": ("F32", []), "none": ("F32", [0, 7]), "h.1.weight": ("BF16", [7])}

    def test_a_file(self):
        path = self.path("model.safetensors", safetensors(self.TENSORS, {"format": "pt"}))
        whole = self.answer("--model", path, "--dp", "8")
        self.assertEqual([(arena["param_dtype"], sorted((p["index"], p["end"] - p["begin"]) for p in arena["params"])) for arena in whole["arenas"]],
                         [("f32", [(0, 500), (2, 1), (3, 0)]), ("bf16", [(1, 600), (4, 7)])])
        self.assertEqual([arena["grad_dtype"] for arena in self.answer("--model", path, "--grad-dtype", "same")["arenas"]], ["f32", "bf16"])
        as_bf16 = self.answer("--model", path, "--param-dtype", "bf16", "--dp", "8")
        self.assertEqual(as_bf16, self.answer("--sizes", "500,600,1,0,7", "--param-dtype", "bf16", "--dp", "8"))
        self.assertIn("5 parameters of 1108 elements over 8", plan("--model", path, "--dp", "8").stdout)
        self.refused("--model", path, "--grad-dtype", "bf16", words=["some parameters are f32"])

    def test_what_is_not_trained_is_left_out_and_told(self):
        path = self.path("model.safetensors", safetensors({**self.TENSORS, "ids": ("I64", [4]), "mask": ("BOOL", [4])}))
        done = plan("--model", path)
        self.assertEqual(done.returncode, 0)
        self.assertIn("5 parameters", done.stdout)
        self.assertIn("2 tensors", done.stderr)
        double = self.path("double.safetensors", safetensors({"w": ("F64", [4])}))
        self.refused("--model", double, words=["'w'", "F64", "--param-dtype"])
        self.assertEqual(self.answer("--model", double, "--param-dtype", "f32"), self.answer("--sizes", "4"))

    def test_a_model_in_several_files(self):
        first, second = {"a": ("F32", [3]), "other": ("F32", [9])}, {"b": ("F32", [5]), "c": ("F32", [7])}
        self.path("1.safetensors", safetensors(first))
        self.path("2.safetensors", safetensors(second))
        index = {"metadata": {"total_size": 60, "more": [1, None, True, 0.5, -1]}, "weight_map": {"c": "2.safetensors", "a": "1.safetensors", "b": "2.safetensors"}}
        path = self.path("model.safetensors.index.json", json.dumps(index))
        self.assertEqual(self.answer("--model", path), self.answer("--sizes", "5,7,3"))
        done = subprocess.run([MEGADP, "plan", "--model", "model.safetensors.index.json"], cwd=self.folder, env=without_launcher(), capture_output=True,
                              text=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for change, words in (({"d": "2.safetensors"}, ["'d'", "does not hold"]), ({"d": "3.safetensors"}, ["3.safetensors", "No such file"]),
                              ({"d": "../x"}, ["'../x'", "beside"]), ({"d": ""}, ["beside"]), ({"d": {"e": "f"}}, ["none belongs"]), ({"d": 5}, ["none belongs"])):
            with self.subTest(words[0]):
                self.path("bad.json", json.dumps({"weight_map": {**index["weight_map"], **change}}))
                self.refused("--model", self.path("bad.json"), words=words, code=1 if "No such file" in words else 2)
        for text in ("", "{", "[]", "{}", '{"weight_map":{}}', '{"weight_map":[]}', '"weight_map"', '{"weight_map":{"a":"1","a":"2"}}', "\xff"):
            with self.subTest(text):
                self.refused("--model", self.path("bad.json", text.encode("latin1")), words=["bad.json", "is no index"])

    def test_malformed_files(self):
        good = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
        cases = {
            b"": ["0 bytes"], b"1234567": ["7 bytes"], raw("", 0): ["does not begin with {"], raw("{}", 3): ["should have 3", "after 2"],
            raw("", 1 << 40): ["1099511627776", "100000000"], raw("", (1 << 64) - 1): ["18446744073709551615"], raw("[]"): ["begin with {"], raw("{"): ["not JSON"],
            raw("{}"): ["no parameters"], raw('{"a":5}'): ["'a'"], raw('{"a":null}'): ["'a'"], raw('{"a":[]}'): ["'a'"], raw('{"a":{}}'): ["'a'", "no dtype"],
            raw('{"a":%s}x' % good): ["not JSON"], raw('{"a":%s,"a":%s}' % (good, good)): ["same name"], raw(b'{"\xff":5}'): ["not JSON"],
            raw('{"":%s}' % good): ["empty name"], raw('{"a\\u0000b":%s,"c":{}}' % good): ["'c'"], raw('{"__metadata__":{"a":{}}}'): ["none belongs"],
            raw('{"__metadata__":5}'): ["none belongs"], raw('{"__metadata__":{"a":5}}'): ["none belongs"],
        }
        for old, new, words in (('"F32"', '"F33"', "F33"), ('"F32"', "5", "a number"), ('"F32"', '""', "no dtype"), ('"F32"', '["F32"]', "an array"), ("[2]", "[-2]", "negative"),
                                ("[2]", "[2.5]", "not whole"), ("[2]", "[18446744073709551616]", "too large"), ("[2]", "[9223372036854775808]", "9223372036854775808"),
                                ("[2]", "[4294967296,4294967296]", "counted"), ("[2]", '["2"]', "a string"), ("[2]", "[[2]]", "an array"), ("[2]", "2", "a number"),
                                ("[2]", "[%s]" % ",".join(["1"] * 17), "dimensions"), ('"shape":[2],', "", "no shape"), ("[0,8]", "[0]", "data_offsets"),
                                ("[0,8]", "[0,8,9]", "two data_offsets"), ("[0,8]", "[8,0]", "8 and 0"), ("[0,8]", "[0,7]", "8 bytes"), ('"shape":[2]', '"shape":[2],"shape":[2]', "twice"),
                                ('"shape"', '"form"', "'form'"), ("[2]", "{}", "an object"), ("[2]", "[{}]", "an object"), ("[2]", "[true]", "truth")):
            cases[raw('{"a":%s}' % good.replace(old, new))] = ["'a'", words]
        for content, words in cases.items():
            with self.subTest(content[:90]):
                self.refused("--model", self.path("bad.safetensors", content), words=words)
        self.refused("--model", self.path("absent"), words=["No such file"], code=1)
        self.refused("--model", self.folder, words=["Is a directory"], code=1)

    def test_headers_that_would_fill_the_memory(self):
        for header in ("[" * 30_000_000, '{"a":' * 6_000_000, '{"a":{"shape":[%s' % ("1," * 10_000_000), '{"__metadata__":{%s' % ('"k":"v",' * 3_000_000)):
            self.refused("--model", self.path("bad.safetensors", raw("{" + header[1:] if header[0] == "[" else header)), address_space=512 << 20)
        self.refused("--model", "/dev/zero", words=["does not begin"], address_space=256 << 20)


class Ranks(PlanTest):
    """Of a million ranks a few are shown. The limit is one of addresses, which the program itself takes some of."""
    MOST = 1 << 20

    def test_text(self):
        done = plan("--sizes", "1000,500,300", "--dp", str(self.MOST), address_space=128 << 20)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"{self.MOST - 16} more ranks", done.stdout)
        self.assertIn(f"0-{self.MOST - 1} ", done.stdout)

    def test_json(self):
        with open(self.path("plan"), "w") as file:
            done = plan("--sizes", "100000000,500", "--dp", str(self.MOST), "--json", address_space=128 << 20, stdout=file)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(self.path("plan"), "rb") as file:
            front = file.read(100)
            file.seek(-200, os.SEEK_END)
            back = file.read()
        self.assertTrue(front.startswith(b'{"dp":1048576,"arenas":[{"param_dtype":"f32"'), front)
        self.assertTrue(back.endswith(b"}]}\n"), back)


if __name__ == "__main__":
    MEGADP = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
