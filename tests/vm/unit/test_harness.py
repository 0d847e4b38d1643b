# SPDX-License-Identifier: Apache-2.0
"""The parts of the harness that decide: headers, grouping, releases, module order, the result parser."""
import io
import os
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

from harness import boot, cases, debian, image, schedule


class TempCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Headers(TempCase):
    def case(self, name, *headers):
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + "".join(f"# {line}\n" for line in headers) + "\ntrue\n# vm-memory: 9G\n")
        return cases.Case(path)

    def test_headers_end_at_the_first_line_that_is_no_comment(self):
        self.assertEqual(self.case("10-a.sh", "vm-memory: 3G").one("memory", "2G"), "3G")
        self.assertEqual(self.case("11-b.sh").one("memory", "2G"), "2G")

    def test_unknown_header_is_refused(self):
        with self.assertRaisesRegex(ValueError, "vm-memroy"):
            self.case("10-a.sh", "vm-memroy: 3G")

    def test_unknown_drive_option_is_refused(self):
        with self.assertRaisesRegex(ValueError, "sise"):
            self.case("10-a.sh", "vm-drive: nvme sise=4M")

    def test_cases_share_a_boot_only_when_the_machine_is_equal(self):
        boots = cases.group([self.case("10-a.sh"), self.case("11-b.sh", "vm-modules: veth"),
                             self.case("12-c.sh", "vm-drive: nvme size=1G"),
                             self.case("13-d.sh", "vm-boot: own"), self.case("14-e.sh")])
        self.assertEqual([[c.name for c in group] for group in boots],
                         [["10-a", "11-b", "14-e"], ["12-c"], ["13-d"]])

    def test_a_network_card_has_its_own_boot_and_its_place_in_the_address(self):
        plain, with_nics = self.case("10-a.sh"), self.case("11-b.sh", "vm-nic: igb", "vm-nic: virtio-net-pci,csum=off")
        self.assertEqual(len(cases.group([plain, with_nics])), 2)
        self.assertEqual(boot.nic_arguments(plain.nics), [])
        self.assertIn("virtio-net-pci,csum=off,netdev=port2,mac=52:54:00:00:00:02,romfile=", boot.nic_arguments(with_nics.nics))

    def test_choosing_a_case_brings_those_it_comes_after(self):
        known = [self.case("10-write.sh"), self.case("11-verify.sh", "vm-after: 10-write"), self.case("12-c.sh")]
        self.assertEqual([c.name for c in cases.select(known, ["verify"], "vm")], ["10-write", "11-verify"])
        with self.assertRaisesRegex(ValueError, "no case is called nothing"):
            cases.select(known, ["nothing"], "vm")

    def test_a_lane_has_only_its_own_cases(self):
        known = [self.case("10-a.sh"), self.case("11-b.sh", "vm-lane: bench")]
        self.assertEqual([c.name for c in cases.select(known, [], "vm")], ["10-a"])
        self.assertEqual([c.name for c in cases.select(known, [], "bench")], ["11-b"])


class Order(unittest.TestCase):
    def run_groups(self, *groups, jobs=2):
        """groups: names, each with what it comes after; returns the order of starts and ends."""
        events = []

        def work(group):
            events.append("+" + group[0].name)
            events.append("-" + group[0].name)

        known = []
        for group in groups:
            members = [mock.Mock(words=lambda _, after=after: after) for _, after in group]
            for member, (name, _) in zip(members, group):
                member.name = name
            known.append(members)
        schedule.run(known, jobs, work)
        return events

    def test_a_boot_waits_for_those_it_comes_after_and_lets_others_pass(self):
        events = self.run_groups([("a", [])], [("b", ["a"])], [("c", [])], [("d", ["c"])])
        self.assertLess(events.index("-a"), events.index("+b"))
        self.assertLess(events.index("-c"), events.index("+d"))

    def test_cases_of_one_boot_do_not_wait_for_each_other(self):
        self.assertEqual(self.run_groups([("a", []), ("b", ["a"])]), ["+a", "-a"])

    def test_a_circle_is_refused(self):
        with self.assertRaisesRegex(ValueError, "wait for each other"):
            self.run_groups([("a", ["b"])], [("b", ["a"])])


class Releases(unittest.TestCase):
    NAMES = "".join(f"linux-binary-{r} - Linux\n" for r in (
        "7.2.12+deb13-amd64", "7.3.4+deb13-amd64", "7.3.10+deb14-amd64", "7.3.11+deb14-rt-amd64",
        "7.3.12+deb14-cloud-amd64", "7.30.1+deb14-amd64"))

    def test_newest_plain_image_of_the_series_is_taken(self):
        self.assertEqual(debian.pick_release(self.NAMES, "7.3"), "7.3.10+deb14-amd64")

    def test_a_series_that_left_debian_is_none(self):
        self.assertIsNone(debian.pick_release(self.NAMES, "7.4"))


class ModuleOrder(TempCase):
    def modules(self, **needs):
        for name, depends in needs.items():
            (self.folder / f"{name}.ko").write_bytes(b"\0license=GPL\0depends=" + depends.encode() + b"\0")
        return image.Modules(self.folder)

    def test_each_module_follows_what_it_needs(self):
        modules = self.modules(nvme="nvme-core", nvme_core="nvme-auth,nvme-keyring", nvme_auth="nvme-keyring",
                               nvme_keyring="")
        self.assertEqual(modules.order(["nvme"]), ["nvme_keyring", "nvme_auth", "nvme_core", "nvme"])

    def test_built_in_modules_have_no_file_and_are_left_out(self):
        self.assertEqual(self.modules(a="b").order(["c", "a"]), ["a"])

    def test_our_module_replaces_the_stock_one(self):
        self.modules(netdevsim="psample", psample="")
        own = self.folder / "own"
        own.mkdir()
        (own / "netdevsim.ko").write_bytes(b"\0depends=\0ours")
        modules = image.Modules(self.folder, [own / "netdevsim.ko"])
        self.assertIn(b"ours", modules.load("netdevsim"))


class Archives(TempCase):
    def test_cpio_reads_what_the_archive_wrote(self):
        out = io.BytesIO()
        archive = image.Archive(out)
        archive.data("usr/bin/a", b"hello", 0o755)
        archive.link("bin", "usr/bin")
        archive.data("usr/bin/a", b"the second of one name is dropped")
        archive.close()
        busybox = subprocess.run(["busybox", "cpio", "-idm"], input=out.getvalue(), cwd=self.folder,
                                 stderr=subprocess.PIPE)
        self.assertEqual(busybox.returncode, 0, busybox.stderr)
        self.assertEqual((self.folder / "bin" / "a").read_bytes(), b"hello")
        self.assertTrue(os.access(self.folder / "usr/bin/a", os.X_OK))


class Parser(TempCase):
    """A stand-in for QEMU writes the result port and the console; the verdicts must be right."""

    def guest(self, script, names=("10-a",), console="", deadline=None, boot_seconds=20):
        (self.folder / "console.log").write_text(console)
        (self.folder / "out.img").touch()
        known = [mock.Mock(timeout=1) for _ in names]
        for case, name in zip(known, names):
            case.name = name
        report = boot.Report()
        guest = boot.Guest(["true"], self.folder, known, report)
        guest.command = ["sh", "-c", script]
        guest.deadline = deadline or 20
        guest.boot_seconds = boot_seconds
        with mock.patch("builtins.print"), mock.patch.dict(os.environ, {"CI": ""}):
            guest.run()
        return report

    def test_results_are_counted(self):
        report = self.guest("echo '@@begin 10-a'; echo PASS x; echo FAIL y: z; echo 'SKIP q: r'; "
                            "echo '@@end 10-a 0'; echo @@down")
        self.assertEqual((report.passed, report.failed, report.skipped), (1, 1, 1))

    def test_a_case_that_checks_nothing_has_failed(self):
        report = self.guest("echo '@@begin 10-a'; echo hello; echo '@@end 10-a 0'; echo @@down")
        self.assertEqual(report.failures, ["10-a: checked nothing"])

    def test_a_nonzero_exit_fails_a_case_whose_checks_passed(self):
        report = self.guest("echo '@@begin 10-a'; echo PASS x; echo '@@end 10-a 3'; echo @@down")
        self.assertEqual(report.failures, ["10-a: exited 3 without a failed check"])

    def test_a_kernel_report_fails_the_case(self):
        report = self.guest("echo '@@begin 10-a'; echo PASS x; echo '@@splat 10-a BUG: bad'; "
                            "echo '@@end 10-a 0'; echo @@down")
        self.assertEqual(report.failures, ["10-a: kernel report: BUG: bad"])

    def test_a_panic_is_named_and_fails_the_rest(self):
        report = self.guest("echo '@@begin 10-a'; echo PASS x", ("10-a", "11-b"),
                            "[ 1.0] Kernel panic - not syncing: Fatal exception\n")
        self.assertEqual(report.failures, ["10-a: Kernel panic - not syncing: Fatal exception",
                                           "11-b: not run: Kernel panic - not syncing: Fatal exception"])

    def test_a_hung_guest_is_killed_at_the_deadline(self):
        report = self.guest("echo '@@begin 10-a'; exec sleep 600", deadline=1)
        self.assertEqual(report.failures, ["10-a: guest hung, killed after 1 s"])

    def test_a_guest_that_says_nothing_is_started_once_more(self):
        once = self.folder / "once"
        report = self.guest(f"if [ ! -e {once} ]; then touch {once}; exec sleep 600; fi; "
                            "echo '@@begin 10-a'; echo PASS x; echo '@@end 10-a 0'; echo @@down", boot_seconds=1)
        self.assertEqual((report.passed, report.failures), (1, []))

    def test_and_has_failed_if_it_says_nothing_again(self):
        tries = self.folder / "tries"
        report = self.guest(f"echo x >>{tries}; exec sleep 600", boot_seconds=1)
        self.assertEqual(report.failures, ["10-a: not run: guest hung, killed after 1 s"])
        self.assertEqual(len(tries.read_text().splitlines()), 2)


if __name__ == "__main__":
    unittest.main()
