# SPDX-License-Identifier: Apache-2.0
"""megadp.jax with tensor-parallel ranks, inside jit and outside: against the same on whole arrays. The programs are in jax_tp_cases.py."""
import json
import os
import re
import tempfile
import unittest

import support

CASES = "jax_tp_cases.py"


class JaxTp(unittest.TestCase):
    def run_case(self, ranks, case, *more, program=CASES, needs_products=True):
        reason = support.no_products() if needs_products else None
        if reason:
            self.skipTest(reason)
        return support.run_case(self, ranks, program, case, *more)

    def test_regions(self):
        self.run_case(2, "regions", needs_products=False)

    def test_layers(self):
        out = self.run_case(2, "layers")
        self.assertEqual(set(re.findall(r"(\d+) layers", out)), {"28"}, out)

    def test_vocabulary(self):
        for ranks in (1, 2):
            out = self.run_case(ranks, "vocabulary", needs_products=False)
            self.assertEqual(set(re.findall(r"(\d+) of a vocabulary", out)), {"19"}, out)

    def test_halos(self):
        """A convolution of images that are cut over ranks."""
        out = support.check_ended(self, support.run_ranks(2, [os.path.join(support.PACKAGE, "tests", "jax_spatial_cases.py")]))
        self.assertEqual(out.count("spatial done"), 2, out)

    def test_order(self):
        self.run_case(3, "order", needs_products=False)

    def test_several_devices_of_a_rank(self):
        for ranks in (1, 2):
            self.run_case(ranks, "mapped", program="jax_once_cases.py")

    def test_what_jax_runs_a_second_time(self):
        for ranks in (1, 2):
            self.run_case(ranks, "again", program="jax_once_cases.py")

    def test_kept(self):
        """Calls outside of jit each left 1.5 MiB behind, for every callback."""
        self.run_case(2, "kept")

    def test_training(self):
        """Whole, and with sequence parallelism, against one rank."""
        def losses(ranks, size):
            found = [json.loads(line) for line in re.findall(r"losses (\[.*\])", self.run_case(ranks, "training", size))]
            self.assertEqual([len(each) for each in found], [20, 20])
            return found

        whole, _ = losses(1, 1)
        self.assertLess(whole[-1], 0.8 * whole[0])
        for ranks in (2, 4):
            for sequence, cut in enumerate(losses(ranks, 2)):
                apart = max(abs(a - b) / abs(b) for a, b in zip(cut, whole))
                print(f"tp 2 x dp {ranks // 2}, sequence {bool(sequence)}: losses {cut[0]:.6f} to {cut[-1]:.6f}, at most {apart:.1e} apart",
                      flush=True)
                self.assertLess(apart, 1e-5)

    def test_checkpoints(self):
        """save_checkpoint at tp 2, load_checkpoint at 1, 2 and 4."""
        with tempfile.TemporaryDirectory() as folder:
            def run(ranks, mode, size):
                return json.loads(re.search(r"found (\{.*\})", self.run_case(ranks, "saved_training", folder, mode, size))[1])

            saved = run(2, "save", 2)
            self.assertEqual(run(2, "go_on", 2), saved)  # the same bits
            for ranks, size in ((1, 1), (4, 2), (4, 4)):
                found = run(ranks, "go_on", size)
                self.assertEqual(found["saved"], saved["saved"])
                apart = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], saved["losses"]))
                print(f"saved at tp 2, loaded at tp {size} x dp {ranks // size}: losses at most {apart:.1e} apart", flush=True)
                self.assertLess(apart, 1e-5)


if __name__ == "__main__":
    unittest.main()
