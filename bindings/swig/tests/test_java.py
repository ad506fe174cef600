# SPDX-License-Identifier: Apache-2.0
"""Java: the jar, the digits with 1 and 2 ranks, the failures, and the README's first example."""
import glob
import os
import re
import shutil
import tempfile
import unittest
import zipfile

import build
import ranks

JAVA = os.path.join(ranks.SWIG, "java")


def virtual_machines():
    """The java on the PATH, and another one where MEGADP_JAVA names it."""
    return [name for name in ("java", os.environ.get("MEGADP_JAVA")) if name and shutil.which(name)]


class Java(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            cls.jar = build.build("java", os.path.join(ranks.MADE, "java"))
        except build.Missing as missing:
            raise unittest.SkipTest(str(missing)) from missing
        cls.classes = os.path.join(ranks.MADE, "java-tests")
        shutil.rmtree(cls.classes, ignore_errors=True)
        os.makedirs(cls.classes)
        build.run("javac", "--release", "8", "-Xlint:all,-options", "-Werror", "-encoding", "UTF-8", "-cp", cls.jar, "-d", cls.classes,
                  *glob.glob(os.path.join(JAVA, "tests", "*.java")), *glob.glob(os.path.join(JAVA, "examples", "*.java")))

    def java(self, *arguments, machine="java"):
        return [machine, "-Xcheck:jni", "-cp", f"{self.jar}{os.pathsep}{self.classes}", *arguments]

    def case(self, name, count=1, code=0):
        """What each of `count` ranks printed, sorted; none of it a complaint of the virtual machine about the wrapper."""
        for machine in virtual_machines():
            with tempfile.TemporaryDirectory() as folder:
                env = ranks.environment(FAILURES_FLAG=os.path.join(folder, "flag"))
                ended = ranks.run_ranks(count, self.java("Failures", name, machine=machine), env=env)
            printed = sorted(ranks.check_ended(self, ended, code).splitlines())
            self.assertNotIn("in native method", ended.stdout + ended.stderr)
        return printed

    def test_bad_argument(self):
        self.assertEqual(self.case("badArgument"), ["done"])

    def test_missing_gradient(self):
        self.assertEqual(self.case("missingGradient", 2), ["done"] * 2 + ["refused 0 1"] * 2 + ["stepped 1"] * 2)

    def test_reduced_gradients(self):
        self.assertEqual(self.case("reducedGradients", 2), ["done"] * 2 + ["reduced 5.0 3.0 0.0 3.0 1.5 2.5 steps 110"] * 2 +
                         ['set 100 7 {"rule":"AdamW","steps":9'] * 2)

    def test_checkpoints(self):
        self.assertEqual(self.case("checkpoints", 2), ["data true rank 1 true"] * 2 + ["done"] * 2 + ["loaded [1.0, 2.0, 3.0, 4.0] 0"] * 2 +
                         ["loaded [1.0, 2.0, 3.0, 4.0] 5"] * 2)

    def test_checkpoint_parts(self):
        for count in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                ended = ranks.run_ranks(count, self.java("Checkpoints"), env=ranks.environment(FAILURES_FLAG=os.path.join(folder, "flag")))
            self.assertEqual(ranks.check_ended(self, ended), "loaded [7.0, 7.0, 7.0] [9.0, 9.0] 7 8 10.0 7\n" * count)

    def test_checked_gradients(self):
        self.assertEqual(self.case("checkedGradients", 2), ["checked 2.0078125 false [1, 0] 0"] * 2 + ["checked true [1, 0] 0"] * 2 + ["done"] * 2)

    def test_pooled_gradients(self):
        self.assertEqual(self.case("pooledGradients", 2), ["done"] * 2)

    def test_views_after_step(self):
        self.assertEqual(self.case("viewsAfterStep", 2), ["done"] * 2)

    def test_lent_gradient(self):
        self.assertEqual(self.case("lentGradient"), ["done"])

    def test_killed_peer(self):
        self.assertEqual(self.case("killedPeer", 3, 137), ["done"] * 2 + ["kept true 1"] * 2 + ["told 1"] * 10)

    def test_use_after_close(self):
        self.assertEqual(self.case("useAfterClose"), ["done"])

    def test_collected(self):
        self.assertEqual(self.case("collected"), ["done"])

    def test_interrupted(self):
        self.assertEqual(self.case("interrupted", 2), ["done"] * 2 + ["interrupted"] * 2 + ["passed"] * 2 + ["synced"] * 2)

    def test_cut(self):
        self.assertEqual(self.case("cut", 3), ["done"] * 3 + ["part 1 b 1 buckets 1 value 1.0"] + ["part 20 b 1 buckets 1 value 2.0"] * 2)

    def test_given_values(self):
        self.assertEqual(self.case("givenValues"), ["0.75 1.0 0.875 0.75 1.0 0.875 moments 3.0 9.0", "done"])

    def test_tensor_parallelism(self):
        ended = ranks.run_ranks(2, self.java("TensorParallelism"))
        self.assertEqual(ranks.check_ended(self, ended), "as unsplit\n" * 2)

    def test_halos(self):
        ended = ranks.run_ranks(2, self.java("Halos"))
        self.assertEqual(ranks.check_ended(self, ended), "as the ring\n" * 2)

    def test_rules(self):
        for count in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                env = ranks.environment(FAILURES_FLAG=os.path.join(folder, "flag"))
                ended = ranks.run_ranks(count, self.java("Rules"), env=env)
            self.assertEqual(sorted(ranks.check_ended(self, ended).splitlines()),
                             ["as the formulas"] * count + ["scales 1024 1024 512 256 256 256 512 512"] * count)

    def test_callers_rule(self):
        for count in (1, 2):
            ended = ranks.run_ranks(count, self.java("CallersRule"))
            self.assertEqual(ranks.check_ended(self, ended), "the library's bits\n" * count)

    def test_plans(self):
        self.assertEqual(self.case("plans"), ["done"])

    @unittest.skipUnless(os.path.exists(ranks.DIGITS), "the digits are not there (scripts/setup_python writes them)")
    def test_training(self):
        losses = [ranks.check_ended(self, ranks.run_ranks(n, ["java", "-cp", f"{self.jar}{os.pathsep}{self.classes}", "DigitsMlp", ranks.DIGITS]))
                  for n in (1, 2)]
        ranks.check_losses(self, *losses)

    def test_the_jar_is_whole(self):
        """Without MEGADP_LIBRARY the library inside is used, nothing is left in the temporary folder, and all is for Java 8."""
        with zipfile.ZipFile(self.jar) as jar:
            versions = {jar.read(name)[6:8] for name in jar.namelist() if name.endswith(".class")}
        self.assertEqual(versions, {b"\x00\x34"})
        with tempfile.TemporaryDirectory() as folder:
            env = ranks.environment()
            del env["MEGADP_LIBRARY"]
            command = self.java("Failures", "plans")
            ended = ranks.run([command[0], f"-Djava.io.tmpdir={folder}", *command[1:]], env=env)
            self.assertEqual(ranks.check_ended(self, ended), "done\n")
            self.assertEqual(os.listdir(folder), [])
            ended = ranks.run(command, env=dict(env, MEGADP_LIBRARY=os.path.join(folder, "absent.so")))
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn("absent.so", ended.stderr)

    def test_readme(self):
        """Its first example runs as printed."""
        source, commands = ranks.first_example(self, os.path.join(JAVA, "README.md"), "java")
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "Train.java"), "w", encoding="utf-8") as file:
                file.write(source)
            shutil.copy(self.jar, folder)
            path = os.pathsep.join([os.path.dirname(ranks.PROGRAM), os.environ["PATH"]])
            ended = ranks.run(["bash", "-euc", commands], cwd=folder, env=ranks.environment(PATH=path))
            self.assertEqual(ranks.check_ended(self, ended).splitlines(), ["[0] w 2.00 b -1.00"])

    def test_readme_layers(self):
        """Its layers that are cut over two ranks run as printed."""
        with open(os.path.join(JAVA, "README.md"), encoding="utf-8") as file:
            section = file.read().split("## Tensor and sequence parallelism")[1]
        source = re.search(r"^```java\n(.*?)^```", section, re.M | re.S)[1]
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "Layers.java"), "w", encoding="utf-8") as file:
                file.write(source)
            build.run("javac", "--release", "8", "-Xlint:-options", "-cp", self.jar, "-d", folder, os.path.join(folder, "Layers.java"))
            ended = ranks.run_ranks(2, ["java", "-cp", f"{self.jar}{os.pathsep}{folder}", "Layers"])
        self.assertEqual(ranks.check_ended(self, ended), re.search(r"As two ranks it prints `(.*?)`", section)[1] + "\n")

    def test_readme_snippets(self):
        """Its other pieces of a program run as printed, in place of the first example's step."""
        with open(os.path.join(JAVA, "README.md"), encoding="utf-8") as file:
            text = file.read()
        example, *snippets = re.findall(r"^```java\n(.*?)^```", text, re.M | re.S)
        snippets = [snippet for snippet in snippets if not snippet.startswith("import")]
        self.assertTrue(snippets)
        step = "        optimizer.step(); // with the mean of all ranks' gradients\n"
        self.assertIn(step, example)
        for number, snippet in enumerate(snippets):
            name = f"Snippet{number}"
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, f"{name}.java"), "w", encoding="utf-8") as file:
                    file.write(example.replace(step, snippet).replace("class Train", f"class {name}"))
                build.run("javac", "--release", "8", "-Xlint:-options", "-cp", self.jar, "-d", folder, os.path.join(folder, f"{name}.java"))
                ended = ranks.run_ranks(2, ["java", "-cp", f"{self.jar}{os.pathsep}{folder}", name])
            self.assertIn("w 2.00 b -1.00\n", ranks.check_ended(self, ended))

    def test_readme_names(self):
        """What it says of an exception's members is so: a method where it has brackets, a field where it has none."""
        with open(os.path.join(JAVA, "README.md"), encoding="utf-8") as file:
            text = file.read()
        told = build.run("javap", "-cp", self.jar, "megadp.MegaDPException")
        errors = re.search(r"^- \*\*Errors\*\*(.*?)(?=^- \*\*|\Z)", text, re.M | re.S)[1]
        named = re.findall(r"`(\w+)(\([\w]*\))?`", errors.split("```")[0])
        members = [(name, call) for name, call in named if not name.startswith("MegaDP")]
        self.assertGreaterEqual(len(members), 6)
        for name, call in members:
            form = re.escape(name) + (";" if not call else r"\(\)" if call == "()" else r"\(.+\)")
            self.assertRegex(told, f"public .* {form}")


if __name__ == "__main__":
    unittest.main()
