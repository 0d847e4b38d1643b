# SPDX-License-Identifier: Apache-2.0
"""kernel/'s scripts when the Linux they build on has left Debian. No network: the package lists are empty ones of our own."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


class BaseLeftTest(unittest.TestCase):
    def run_script(self, name):
        with tempfile.TemporaryDirectory() as cache:
            os.makedirs(f"{cache}/apt/lists/partial")
            for file in ("sources.list", "stamp"):  # A fresh stamp keeps the lists from being fetched.
                pathlib.Path(cache, "apt", file).touch()
            environment = {**os.environ, "PENSTOCK_KERNEL": "7.1", "PENSTOCK_KERNEL_CACHE": cache}
            return subprocess.run(["bash", ROOT / "kernel" / name, *([f"{cache}/out"] if "build" in name else [])], text=True,
                                  env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def test_a_base_that_has_left_debian_is_named_and_has_a_status_of_its_own(self):
        for name in ("build-module.sh", "build-kernel.sh", "check.sh"):
            with self.subTest(name):
                done = self.run_script(name)
                self.assertEqual(done.returncode, 4, done.stdout)
                self.assertIn("Linux 7.1 has left Debian", done.stdout)
                self.assertIn("move the series to a newer base or set PENSTOCK_KERNEL", done.stdout)


if __name__ == "__main__":
    unittest.main()
