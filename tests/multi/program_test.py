# SPDX-License-Identifier: Apache-2.0
# `megadp info`, `plan`, `checkpoint` and `bench`, from outside: their answers, for programs and for people, and how they refuse.
# Usage: program_test.py PATH_TO_MEGADP [unittest arguments]
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from launcher_variables import without_launcher

MEGADP = ""
LIMIT = 120


def megadp(*arguments, env=None, stdout=subprocess.PIPE):
    return subprocess.run([MEGADP, *arguments], env={**without_launcher(), **(env or {})}, stdin=subprocess.DEVNULL, stdout=stdout,
                          stderr=subprocess.PIPE, text=True, timeout=LIMIT)


class ProgramTest(unittest.TestCase):
    def answer(self, *arguments, env=None):
        done = megadp(*arguments, "--json", env=env)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^[^\n]+\n$")  # one line
        return json.loads(done.stdout)

    def refused(self, *arguments, words=""):
        for more in ((), ("--json",)):
            done = megadp(*arguments, *more)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertRegex(done.stderr, r"(?s)^megadp[^\n]*: .+\.\nSee: megadp[^\n]* --help\n$")
            self.assertIn(words, done.stderr)


class Checkpoints(ProgramTest):
    """On the one that an earlier version has written."""

    KEPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "checkpoint-0.1")

    def failed(self, command, *arguments, words):
        done = megadp("checkpoint", command, *arguments)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, rf"^megadp checkpoint {command}: [^\n]*{words}[^\n]*\n$")
        return done.stdout

    def test_info(self):
        self.assertEqual(self.answer("checkpoint", "info", self.KEPT)["format"], "megadp checkpoint")
        text = megadp("checkpoint", "info", self.KEPT).stdout
        for words in ("/checkpoint-000001\n", "AdamW, 7 steps taken\n", " f32[6,4] ", "embed  cut along 0\n", "mask  tensor\n"):
            self.assertIn(words, text)
        self.failed("info", self.KEPT + "/absent", words="absent: No such file or directory")
        self.assertEqual(megadp("checkpoint").returncode, 2)

    def test_verify(self):
        self.assertEqual(megadp("checkpoint", "verify", self.KEPT).stdout, f"{self.KEPT}: whole\n")
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model.safetensors")
            self.assertEqual(megadp("checkpoint", "export", self.KEPT, model).returncode, 0)
            self.assertEqual(megadp("checkpoint", "verify", model).stdout,
                             f"{model}: headers and sizes fit; a model has no checksums, so its data was not compared\n")
            damaged = os.path.join(folder, "damaged")
            shutil.copytree(self.KEPT, damaged)
            one_file = os.path.join(damaged, "checkpoint-000001", "rank-00001.safetensors")
            self.assertEqual(megadp("checkpoint", "verify", one_file).stdout, f"{one_file}: whole\n")
            with open(one_file, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last[0] ^ 1]))
            told = self.failed("verify", damaged, words="rank-00001.safetensors is damaged")
            self.assertRegex(told, r"^[^\n]*the checksum of bytes \d+ to 1456 differs\n$")
            self.assertEqual(self.failed("verify", one_file, words="rank-00001.safetensors is damaged"), told)

    def test_export(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            self.assertEqual(megadp("checkpoint", "export", self.KEPT, path).returncode, 0)
            with open(path, "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
                data = file.read()
            shapes = {name: (about["dtype"], about["shape"]) for name, about in header.items() if name != "__metadata__"}
            self.assertEqual(shapes, {"embed": ("F32", [6, 4]), "norm": ("BF16", [5]), "head": ("BF16", [4, 6]), "mask": ("U8", [3]),
                                      "count": ("I64", [])})
            begin, end = header["embed"]["data_offsets"]
            self.assertEqual(struct.unpack("<24f", data[begin:end]), tuple((i + 1) / 8 for i in range(24)))
            begin, end = header["head"]["data_offsets"]
            halves = struct.unpack("<24H", data[begin:end])
            self.assertEqual([struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves], [(17 + i) / 8 for i in range(24)])
            self.failed("export", self.KEPT, path, words="is there already")
            several = os.path.join(folder, "several.safetensors")
            self.assertEqual(megadp("checkpoint", "export", self.KEPT, several, "--most-bytes", "100").returncode, 0)
            self.assertEqual(len(self.answer("checkpoint", "info", several + ".index.json")["files"]), 3)


class Program(ProgramTest):
    def test_help_everywhere(self):
        for command in ((), ("run",), ("info",), ("plan",), ("checkpoint",), ("bench",), ("bench", "collectives"), ("bench", "step"),
                        ("bench", "linear"), ("bench", "overlap")):
            done = megadp(*command, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("Usage: megadp " + " ".join(command), done.stdout)
            if command not in ((), ("bench",), ("checkpoint",)):
                self.assertIn("--json", done.stdout)

    def test_version(self):
        self.assertEqual(megadp("--version").stdout, f"megadp {self.answer('info')['version']}\n")

    def test_refusals(self):
        self.refused(words="the command is missing; there are: run, info, plan, checkpoint, bench.")
        self.refused("nonsense", words="there is no command 'nonsense'; there are: run, info, plan, checkpoint, bench.")
        self.refused("info", "more", words="more")
        self.refused("bench", words="the command is missing; there are: collectives, step, linear, overlap.")
        self.refused("bench", "nonsense", words="there is no command 'nonsense'")
        for command in (("info",), ("plan", "--sizes", "1"), ("bench", "collectives", "--op", "all_reduce"), ("bench", "step"),
                        ("bench", "linear"), ("bench", "overlap")):
            done = megadp(*command, "--", "more")
            self.assertEqual((done.returncode, done.stdout), (2, ""))

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            for command in (("--help",), ("--version",), ("plan", "--help"), ("bench", "step", "--help"), ("info",), ("plan", "--sizes", "1"),
                            ("plan", "--sizes", "1", "--json"), ("plan", "--sizes", ",".join(["1"] * 5000), "--json"),
                            ("bench", "step", "--numel", "1000", "--rounds", "5"), ("bench", "collectives", "--op", "all_reduce", "--mib", "0.01", "--json")):
                with self.subTest(command[:2]):
                    done = megadp(*command, stdout=full)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn("could not be written", done.stderr)

    def test_closed_standard_streams_do_no_harm(self):
        done = subprocess.run(["sh", "-c", 'exec "$@" 0<&- 2>&-', "sh", MEGADP, "run", "-n", "2", "--", "sh", "-c", "echo out; echo err >&2; cat"],
                              stdout=subprocess.PIPE, text=True, timeout=LIMIT)
        self.assertEqual((done.returncode, sorted(done.stdout.splitlines())), (0, ["[0] out", "[1] out"]))


class Info(ProgramTest):
    def test_what_it_tells(self):
        info = self.answer("info")
        self.assertRegex(info["version"], r"^\d+\.\d+\.\d+$")
        backends = {backend["name"]: backend for backend in info["backends"]}
        self.assertTrue(backends["host"]["available"])
        self.assertIn("SIMD", backends["host"]["detail"])
        for backend in info["backends"]:
            self.assertTrue(backend["available"] or backend["detail"], "a missing backend says why")
        self.assertEqual(info["machine"]["usable_cores"], len(os.sched_getaffinity(0)))

    def test_finds_its_parts_however_it_is_called(self):
        """The program's own folder, where libraries are looked for, is not what its caller has called it."""
        folder, name = os.path.split(MEGADP)
        expected = self.answer("info")["backends"]
        for command in ([name, "info", "--json"], ["bash", "-c", f"exec -a /proc/self/exe {MEGADP} info --json"]):
            with self.subTest(command):
                done = subprocess.run(command, env={**without_launcher(), "PATH": f"{folder}:{os.environ['PATH']}"}, cwd="/", capture_output=True,
                                      text=True, timeout=LIMIT)
                self.assertEqual(json.loads(done.stdout)["backends"], expected)

    def test_what_launcher_it_sees(self):
        self.assertEqual(self.answer("info")["launch"]["launcher"], "alone")
        broken = self.answer("info", env={"MEGADP_RANK": "1"})["launch"]
        self.assertFalse(broken["ok"])
        self.assertIn("MEGADP_RANK=1", broken["variables"])
        done = megadp("run", "-n", "2", "--no-prefix", MEGADP, "info", "--json")
        launches = sorted((json.loads(line)["launch"] for line in done.stdout.splitlines()), key=lambda launch: launch["rank"])
        self.assertEqual([(launch["launcher"], launch["rank"], launch["size"]) for launch in launches], [("megadp run", 0, 2), ("megadp run", 1, 2)])
        self.assertIsNone(re.search("[0-9a-f]{64}", done.stdout), "the secret is not told")

    def test_for_a_person(self):
        info, text = self.answer("info"), megadp("info", env={"MEGADP_RANK": "1"}).stdout
        for words in (info["version"], "backends", "cuda", "MEGADP_RANK=1", info["machine"]["affinity"]):
            self.assertIn(words, text)


class Plan(ProgramTest):
    EXAMPLE = ("plan", "--sizes", "1000,500,300", "--dp", "4", "--param-dtype", "bf16", "--grad-dtype", "f32")

    def test_the_example(self):
        plan = self.answer(*self.EXAMPLE)
        self.assertEqual(plan["dp"], 4)
        self.assertEqual(list(plan), ["dp", "arenas", "bytes"])
        self.assertEqual(plan["arenas"], [{
            "param_dtype": "bf16", "grad_dtype": "f32", "numel": 1920,
            "params": [{"index": 2, "begin": 0, "end": 300, "bucket": 0}, {"index": 1, "begin": 320, "end": 820, "bucket": 0},
                       {"index": 0, "begin": 832, "end": 1832, "bucket": 0}],
            "buckets": [{"begin": 0, "end": 1920, "unpadded": 1832}],
            "owned": [[{"param": 2, "begin": 0, "end": 300, "param_begin": 0}, {"param": 1, "begin": 320, "end": 480, "param_begin": 0}],
                      [{"param": 1, "begin": 480, "end": 820, "param_begin": 160}, {"param": 0, "begin": 832, "end": 960, "param_begin": 0}],
                      [{"param": 0, "begin": 960, "end": 1440, "param_begin": 128}],
                      [{"param": 0, "begin": 1440, "end": 1832, "param_begin": 608}]]}])
        self.assertEqual(len(plan["bytes"]), 4)
        for rank in plan["bytes"]:
            scratch = rank.pop("scratch")
            self.assertGreaterEqual(scratch, 0)
            self.assertEqual(rank.pop("communicators"), 2 * (147 << 20))  # on a device: for gradients, and for gathers
            self.assertEqual(rank, {"param": 3840, "grad": 7680, "grad_shard": 0, "spill": 0, "feedback": 0, "master": 1920, "state": 3840,
                                    "snapshot": 960 + 1920 + 3840, "average": 480 * (4 + 2)})

    def test_average(self):
        arguments = ("plan", "--sizes", "1000,500,300", "--dp", "4", "--param-dtype", "bf16", "--average")
        rank = self.answer(*arguments)["bytes"][0]
        self.assertEqual((rank["average"], rank["snapshot"]), (480 * (4 + 2), 960 + 1920 + 3840 + 1920))
        self.assertIn("Besides, the average, and what a swap with it keeps aside: 2880 bytes", megadp(*arguments).stdout)

    def test_defaults(self):
        plan = self.answer("plan", "--sizes", "7")
        self.assertEqual((plan["dp"], plan["arenas"][0]["param_dtype"], plan["arenas"][0]["grad_dtype"]), (1, "f32", "f32"))

    def buckets(self, *more):
        arena = self.answer("plan", "--sizes", "1000,500,300", "--dp", "4", *more)["arenas"][0]
        return [[param["index"] for param in arena["params"] if param["bucket"] == bucket] for bucket in range(len(arena["buckets"]))]

    def test_bucket_sizes(self):
        self.assertEqual(self.buckets("--bucket-size", "all"), [[2, 1, 0]])
        self.assertEqual(self.buckets("--bucket-size", "reference"), [[2, 1, 0]])
        self.assertEqual(self.buckets("--bucket-size", "1"), [[2], [1], [0]])
        self.assertEqual(self.buckets("--bucket-size", "400"), [[2, 1], [0]])

    def test_reference_buckets_close_at_the_references_size(self):
        sizes = ",".join(["10000000"] * 10)
        arena = self.answer("plan", "--sizes", sizes, "--dp", "8", "--bucket-size", "reference")["arenas"][0]
        self.assertEqual([bucket["unpadded"] >= 40_000_000 for bucket in arena["buckets"]], [True, True, False])

    def test_own_buckets(self):
        self.assertEqual(self.buckets("--bucket-size", "all", "--own-bucket", "1"), [[2], [1], [0]])
        expected = self.buckets("--bucket-size", "all", "--own-bucket", "2", "--own-bucket", "0")
        self.assertEqual(expected, [[2], [1], [0]])
        self.assertEqual(self.buckets("--bucket-size", "all", "--own-bucket", "2,0"), expected)
        self.assertEqual(self.buckets("--bucket-size", "all", "--own-bucket", "2"), [[2], [1, 0]])

    def test_padding(self):
        for more, unit in (((), math.lcm(6, 128)), (("--pad-high-bandwidth",), math.lcm(6, 128, 65536))):
            arena = self.answer("plan", "--sizes", "1000,500,300", "--dp", "6", *more)["arenas"][0]
            for bucket in arena["buckets"]:
                self.assertEqual(bucket["end"] % unit, 0)

    def test_plan_of_instances(self):
        one, two = (self.answer(*self.EXAMPLE, "--instances", count) for count in "12")
        self.assertEqual([len(plan["arenas"][0]["owned"]) for plan in (one, two)], [4, 2])
        self.assertEqual(two["bytes"][0]["master"], 2 * one["bytes"][0]["master"])
        self.assertIn("4 data-parallel ranks in 2 instances", megadp(*self.EXAMPLE, "--instances", "2").stdout)
        self.refused(*self.EXAMPLE, "--instances", "3", words="instances is 3; it must divide the 4 ranks")

    def test_rules(self):
        for rule, arrays in (("adamw", 2), ("adam", 2), ("sgd", 0), ("sgd_momentum", 1), ("sgd_nesterov", 1), ("lion", 1)):
            bytes_each = self.answer("plan", "--sizes", "1280", "--dp", "2", "--rule", rule)["bytes"][0]
            self.assertEqual((bytes_each["master"], bytes_each["state"]), (0, arrays * 640 * 4), rule)

    def test_small_state(self):
        for dtype, options, expected in (("bf16", (), (2560, 5120)), ("bf16", ("--state-dtype", "bf16"), (2560, 2560)),
                                         ("bf16", ("--state-dtype", "bf16", "--no-master"), (0, 2560)), ("f32", ("--no-master",), (0, 5120))):
            bytes_each = self.answer("plan", "--sizes", "1280", "--dp", "2", "--param-dtype", dtype, *options)["bytes"][0]
            self.assertEqual((bytes_each["master"], bytes_each["state"]), expected, options)
        self.refused("plan", "--sizes", "1280", "--param-dtype", "f16", "--no-master", words="--no-master, but some parameters are f16")
        self.refused("plan", "--sizes", "1280", "--rule", "sgd", "--state-dtype", "bf16", words="--state-dtype is bf16; sgd keeps no state")

    def test_gradients_sharded(self):
        for slots in (1, 2):
            plan = self.answer("plan", "--sizes", "1000,500,300", "--dp", "4", "--sharding", "2", "--bucket-size", "600", "--pool-buckets", str(slots))
            longest = max(bucket["end"] - bucket["begin"] for bucket in plan["arenas"][0]["buckets"])
            self.assertEqual([plan["bytes"][0][name] for name in ("grad", "grad_shard", "spill")],
                             [4 * slots * longest, plan["arenas"][0]["numel"], 4 * 1800])

    def test_bf16_wire(self):
        sizes = ("plan", "--sizes", "1000,500,300", "--dp", "4", "--bucket-size", "600")
        plain, wire, kept = (self.answer(*sizes, *more) for more in ((), ("--bf16-wire",), ("--bf16-wire", "--error-feedback")))
        longest = max(bucket["end"] - bucket["begin"] for bucket in plain["arenas"][0]["buckets"])
        self.assertEqual(wire["bytes"][0]["scratch"] - plain["bytes"][0]["scratch"], 2 * longest)
        self.assertEqual((wire["bytes"][0]["feedback"], kept["bytes"][0]["feedback"]), (0, kept["bytes"][0]["grad"]))
        self.assertIn(f"{kept['bytes'][0]['feedback']} bytes", megadp(*sizes, "--bf16-wire", "--error-feedback").stdout)

    def test_nothing_sharded(self):
        plan = self.answer("plan", "--sizes", "1000,500,300", "--dp", "4", "--sharding", "0", "--param-dtype", "f16", "--grad-dtype", "same")
        arena = plan["arenas"][0]
        self.assertEqual((arena["numel"], arena["grad_dtype"]), (1800, "f16"))
        self.assertEqual([piece["param"] for piece in arena["owned"][0]], [2, 1, 0])
        self.assertEqual((plan["bytes"][0]["master"], plan["bytes"][0]["state"]), (7200, 14400))

    def test_for_a_person(self):
        done = megadp(*self.EXAMPLE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in ("3 parameters of 1800 elements over 4", "2[0:300] 1[0:160]", "1[160:500] 0[0:128]", "0[608:1000]"):
            self.assertIn(words, done.stdout)
        # 6 + 12/4 bytes for each element of the arena, padding included.
        self.assertRegex(done.stdout, r"0-3 .* {:.3f}\n".format(1920 * (6 + 12 / 4) / 1800))

    def test_many_ranks_and_parameters_stay_readable(self):
        done = megadp("plan", "--sizes", ",".join(["1000"] * 500), "--dp", "100")
        self.assertEqual(done.returncode, 0)
        self.assertIn("more ranks", done.stdout)
        self.assertLess(max(map(len, done.stdout.splitlines())), 220)

    def test_refusals(self):
        for sizes in ("", "x", "1,x", "1,,2", "-1", "1.5", "9223372036854775808", "9223372036854775807,9223372036854775807", "1 2"):
            self.refused("plan", "--sizes", sizes, words="--sizes" if sizes != "9223372036854775807,9223372036854775807" else "elements")
        self.refused("plan", words="--sizes")
        for more, words in ((("--dp", "0"), "--dp"), (("--dp", "-1"), "--dp"), (("--param-dtype", "f64"), "f64"), (("--grad-dtype", "bf16"), "gradients are f32"),
                            (("--bucket-size", "0"), "--bucket-size"), (("--bucket-size", "1x"), "--bucket-size"), (("--bucket-size", "-5"), "--bucket-size"),
                            (("--own-bucket", "1"), "--own-bucket is 1"), (("--own-bucket", "a"), "--own-bucket"), (("--sharding", "3"), "--sharding"), (("--pool-buckets", "2"), "pool_buckets is 2"), (("--error-feedback",), "--error-feedback goes with --bf16-wire"),
                            (("--error-feedback", "--bf16-wire", "--sharding", "2"), "--error-feedback does not go with --sharding 2"),
                            (("--nonsense",), "nonsense")):
            with self.subTest(more):
                self.refused("plan", "--sizes", "5", *more, words=words)


class Bench(ProgramTest):
    def bench(self, *arguments):
        figures = self.answer("bench", "collectives", *arguments)
        self.assertEqual(list(figures), ["op", "backend", "ranks", "bytes", "dtype", "min_ms", "median_ms", "limit_ms", "memcpy_ms"])
        self.assertGreater(figures["min_ms"], 0)
        self.assertLessEqual(figures["min_ms"], figures["median_ms"])
        self.assertGreater(figures["limit_ms"], 0)
        self.assertGreater(figures["memcpy_ms"], 0)
        return figures

    # Each run also checks the results of the library and of the bare loop, and fails when one is wrong.
    def test_every_collective_and_type(self):
        for op in ("reduce_scatter", "all_reduce", "all_gather"):
            for dtype, ranks in (("f32", 2), ("f32", 3), ("bf16", 2), ("f16", 4)):
                with self.subTest(op=op, dtype=dtype, ranks=ranks):
                    figures = self.bench("--op", op, "--dtype", dtype, "--ranks", str(ranks), "--mib", "0.25")
                    self.assertEqual((figures["op"], figures["dtype"], figures["ranks"]), (op, dtype, ranks))
                    self.assertLessEqual(figures["bytes"], 262144)
                    self.assertGreater(figures["bytes"], 260000)

    def test_one_rank_alone(self):
        self.assertEqual(self.bench("--op", "all_reduce", "--ranks", "1", "--mib", "0.25")["ranks"], 1)

    def test_bytes_are_the_full_buffer_of_each_rank(self):
        self.assertEqual(self.bench("--op", "all_gather", "--mib", "2")["bytes"], 2 << 20)

    def test_for_a_person(self):
        done = megadp("bench", "collectives", "--op", "all_reduce", "--mib", "0.1", "--rounds", "21")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in ("all_reduce", "21 rounds", "bare loop", "memcpy"):
            self.assertIn(words, done.stdout)

    def test_sweep(self):
        keys = ["op", "dtype", "bytes", "count", "us", "algbw", "busbw", "right"]
        for op, ranks, memory in (("all_reduce", 2, ()), ("reduce_scatter", 3, ("--user-memory",)), ("all_gather", 4, ()), ("all_reduce", 3, ("--user-memory",))):
            with self.subTest(op=op, ranks=ranks, memory=memory):
                done = megadp("bench", "collectives", "--op", op, "--ranks", str(ranks), "--sweep", *memory, "--mib", "0.01", "--json")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                lines = [json.loads(line) for line in done.stdout.splitlines()]
                # Whole pieces of f32 for every rank.
                self.assertEqual([line["bytes"] for line in lines], [max(2 ** k // 4 // ranks, 1) * ranks * 4 for k in range(3, 14)])
                for line in lines:
                    self.assertEqual(list(line), keys)
                    self.assertEqual((line["op"], line["right"], line["count"] * 4), (op, True, line["bytes"]))
                    self.assertAlmostEqual(line["algbw"], line["bytes"] / line["us"] / 1e3, places=6)
                    share = (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)
                    self.assertAlmostEqual(line["busbw"], line["algbw"] * share, places=6)

    def test_sweep_for_a_person_among_ranks_that_are_there(self):
        done = megadp("run", "-n", "2", "--no-prefix", MEGADP, "bench", "collectives", "--op", "all_gather", "--sweep", "--mib", "0.001")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        head, names, *lines = done.stdout.splitlines()
        self.assertEqual((head, names.split()), ("all_gather on windows", ["bytes", "count", "type", "time", "(us)", "algbw", "busbw", "right"]))
        self.assertEqual([line.split()[0] for line in lines], ["8", "16", "32", "64", "128", "256", "512", "1024"])
        self.assertEqual({line.split()[-1] for line in lines}, {"yes"})

    def test_cuda_runs_or_says_why_not(self):
        done = megadp("bench", "collectives", "--backend", "cuda", "--op", "all_reduce", "--ranks", "1", "--mib", "0.25")
        if done.returncode != 0:
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"(?m)^megadp bench: backend is cuda[:,] .+$")

    def test_refusals(self):
        self.refused("bench", "collectives", words="--op")
        for more in (("--op", "x"), ("--op", "all_reduce", "--ranks", "0"), ("--op", "all_reduce", "--mib", "0"), ("--op", "all_reduce", "--mib", "nan"),
                     ("--op", "all_reduce", "--dtype", "f64"), ("--op", "all_reduce", "--backend", "gpu"), ("--op", "all_reduce", "--rounds", "19")):
            with self.subTest(more):
                self.refused("bench", "collectives", *more, words=more[-2])
        self.refused("bench", "collectives", "--op", "all_reduce", "--user-memory", words="--sweep")
        self.refused("bench", "collectives", "--op", "all_reduce", "--sweep", "--backend", "cuda", words="--sweep is for --backend host")


class BenchStep(ProgramTest):
    # Each run also compares the backend's results with the host's kernels, and fails when one differs.
    def test_every_type(self):
        for param in ("f32", "bf16", "f16"):
            for grad in ("f32", "bf16", "f16"):
                with self.subTest(param=param, grad=grad):
                    figures = self.answer("bench", "step", "--numel", "10001", "--param-dtype", param, "--grad-dtype", grad, "--rounds", "5")
                    self.assertEqual(list(figures), ["backend", "rule", "numel", "param_dtype", "grad_dtype", "rounds", "threads", "update", "square_sum",
                                                     "copy", "update_to_copy", "square_sum_to_copy", "host_syncs"])
                    grad_bytes = 4 if grad == "f32" else 2
                    self.assertEqual(figures["update"]["bytes"], 10001 * (24 + grad_bytes + (0 if param == "f32" else 2)))
                    self.assertEqual(figures["square_sum"]["bytes"], 10001 * grad_bytes)
                    self.assertAlmostEqual(figures["copy"]["bytes"], figures["update"]["bytes"], delta=8)
                    for part in ("update", "square_sum", "copy"):
                        self.assertGreater(figures[part]["bytes_per_s"], 0)
                        self.assertLessEqual(figures[part]["min_ms"], figures[part]["median_ms"])
                    self.assertEqual(figures["host_syncs"], 0)

    def test_sizes_around_what_is_compared_at_a_time(self):
        for numel in ("1", "1048576", "1048577"):
            self.assertEqual(self.answer("bench", "step", "--numel", numel, "--rounds", "5", "--param-dtype", "bf16")["numel"], int(numel))

    def test_threads(self):
        for threads in range(1 + len(os.sched_getaffinity(0))):
            self.assertEqual(self.answer("bench", "step", "--numel", "3000000", "--rounds", "5", "--threads", str(threads))["threads"], threads)
        self.refused("bench", "step", "--threads", str(1 + len(os.sched_getaffinity(0))), words="--threads")

    def test_for_a_person(self):
        done = megadp("bench", "step", "--numel", "5000", "--rounds", "5")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for words in ("adamw", "square sum", "copy", "5000 elements", "5 rounds"):
            self.assertIn(words, done.stdout)

    def test_refusals(self):
        for more in (("--backend", "gpu"), ("--numel", "0"), ("--param-dtype", "f64"), ("--grad-dtype", "i64"), ("--rounds", "4")):
            with self.subTest(more):
                self.refused("bench", "step", *more, words=more[-2])

    def test_cuda_runs_or_says_why_not(self):
        done = megadp("bench", "step", "--backend", "cuda", "--numel", "5000", "--rounds", "5")
        if done.returncode != 0:
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"^megadp bench step: backend is cuda[:,] .+\n$")


class BenchLinear(ProgramTest):
    def test_figures(self):
        for more in ((), ("--sequence",), ("--dtype", "bf16"), ("--chunk-rows", "3"), ("--chunk-rows", "3", "--sequence")):
            for ranks in ("1", "2"):
                with self.subTest(more=more, ranks=ranks):
                    figures = self.answer("bench", "linear", "--features", "64", "--hidden", "32", "--batch", "8", "--rounds", "5", "--ranks",
                                          ranks, *more)
                    self.assertEqual((figures["ranks"], figures["features"], figures["hidden"], figures["batch"]), (int(ranks), 64, 32, 8))
                    self.assertEqual((figures["sequence"], figures["dtype"]), ("--sequence" in more, "bf16" if "bf16" in more else "f32"))
                    self.assertGreater(figures["layers_ms"], 0)
                    self.assertGreater(figures["products_ms"], 0)
                    self.assertTrue(figures["library"])

    def test_for_a_person(self):
        done = megadp("bench", "linear", "--features", "64", "--hidden", "32", "--batch", "8", "--rounds", "5")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("of the layers' time", done.stdout)

    def test_refusals(self):
        for more in (("--rounds", "4"), ("--ranks", "0"), ("--dtype", "f16"), ("--batch", "0"), ("--features", "no"), ("--chunk-rows", "0")):
            with self.subTest(more):
                self.refused("bench", "linear", *more, words=more[-2])
        for more, words in ((("--hidden", "33"), "33, which 2 ranks cannot share evenly; 32 or 34 would do"),
                            (("--batch", "7", "--sequence"), "--batch is 7, which 2 ranks cannot share evenly")):
            with self.subTest(more):
                done = megadp("bench", "linear", "--ranks", "2", *more)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(words, done.stderr)


class BenchOverlap(ProgramTest):
    SMALL = ("bench", "overlap", "--numel", "20001", "--layers", "4", "--rounds", "5")

    # Each run also checks that gradients are averaged, and fails if they are not.
    def test_figures(self):
        for more, ranks in (((), 2), (("--sharding", "zero_0", "--ratio", "0"), 3), (("--sharding", "zero_2", "--dtype", "bf16"), 2),
                            (("--bucket-elements", "5000"), 1)):
            with self.subTest(more=more, ranks=ranks):
                figures = self.answer(*self.SMALL, "--ranks", str(ranks), *more)
                self.assertEqual(list(figures), ["ranks", "numel", "layers", "dtype", "sharding", "buckets", "ratio", "computing_ms",
                                                 "communicating_ms", "step_ms", "exposed"])
                self.assertEqual((figures["ranks"], figures["numel"], figures["layers"]), (ranks, 20000, 4))
                self.assertEqual(figures["sharding"], more[1] if "--sharding" in more else "zero_1")
                self.assertEqual((figures["dtype"], figures["ratio"]), ("bf16" if "bf16" in more else "f32", 0 if "0" in more else 2))
                self.assertEqual(figures["buckets"] == 4, "--bucket-elements" in more)
                self.assertGreater(figures["communicating_ms"], 0)
                self.assertGreater(figures["step_ms"], 0)
                if figures["ratio"] > 0:
                    self.assertGreater(figures["computing_ms"], 0)

    def test_for_a_person_among_ranks_that_are_there(self):
        done = megadp("run", "-n", "2", "--no-prefix", MEGADP, *self.SMALL)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.count("of the communication exposed"), 1)
        self.assertIn("4 layers, 20000 parameters in f32, zero_1 over 2 ranks", done.stdout)

    def test_refusals(self):
        for more in (("--rounds", "4"), ("--ranks", "0"), ("--dtype", "f16"), ("--sharding", "whole"), ("--ratio", "-1"), ("--layers", "0"),
                     ("--bucket-elements", "0")):
            with self.subTest(more):
                self.refused("bench", "overlap", *more, words=more[-2])
        self.refused("bench", "overlap", "--ratio", "nan", words="--ratio")
        self.refused("bench", "overlap", "--numel", "3", words="--numel must be at least --layers")


if __name__ == "__main__":
    MEGADP = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
