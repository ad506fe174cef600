# SPDX-License-Identifier: Apache-2.0
"""megadp.torch's checkpoints: processes go on with the same bits where others have stopped; what is refused. torch_checkpoint_cases.py is
what the ranks run."""
import json
import os
import tempfile
import unittest

import support

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_checkpoint_cases.py")


class Checkpoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = os.path.join(folder.name, "run")
        os.mkdir(self.directory)

    def ranks(self, count, case, *options):
        """What each rank has found, in any order."""
        ended = support.run_ranks(count, [PROGRAM, case, self.directory, *options], env=support.environment(OMP_NUM_THREADS="1"))
        found = [json.loads(line) for line in support.check_ended(self, ended).splitlines()]
        self.assertEqual(len(found), count)
        return found

    def goes_on(self, *options):
        reference = self.ranks(2, "save", *options)
        options = [option for option in options if not option.startswith("wait=")]
        found = self.ranks(2, "go_on", *options)
        of = lambda ranks, *names: sorted(json.dumps([rank[name] for name in names]) for rank in ranks)
        self.assertEqual(of(found, "losses", "after"), of(reference, "losses", "after"))
        own = ("norm.running_mean", "norm.running_var")  # of this rank's batches, until the next forward
        same = [{name: bits for name, bits in rank["after"].items() if name not in own} for rank in found]
        self.assertEqual(same[0], same[1])
        self.assertNotEqual(found[0]["losses"], found[1]["losses"])  # each rank has data and dropout of its own
        self.assertNotEqual(found[0]["saved"], found[0]["after"])
        return found

    def test_goes_on(self):
        """BatchNorm, a frozen parameter, schedulers, dropout, module buffers of all types; loaded on 1 and on 3 ranks too."""
        two = self.goes_on()
        for count, sharding in ((1, "zero_1"), (3, "zero_2")):
            with self.subTest(ranks=count):
                for found in self.ranks(count, "go_on", f"sharding={sharding}"):
                    self.assertEqual(found["saved"], two[0]["saved"])

    def test_goes_on_with_half_width(self):
        self.goes_on("dtype=bfloat16", "sharding=zero_2")

    def test_training_goes_on_while_it_is_written(self):
        self.goes_on("wait=0")

    def test_back_in_one_process(self):
        for options in ((), ("dtype=bfloat16",)):
            self.assertEqual(self.ranks(2, "again", *options), ["ok"] * 2)

    def test_other_buffers(self):
        self.assertEqual(self.ranks(2, "other_buffers"), ["ok"] * 2)

    def test_refused(self):
        self.assertEqual(self.ranks(2, "refused"), ["ok"] * 2)

    def test_params_only(self):
        self.assertEqual(self.ranks(2, "params_only"), ["ok"] * 2)

    def test_extra_state(self):
        self.assertEqual(self.ranks(2, "extra_state"), ["ok"] * 2)


if __name__ == "__main__":
    unittest.main()
