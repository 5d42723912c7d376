"""The planted faults fit the source: one in each package, each where it says, with tests that are there."""

import pytest

from faults import FAULTS, ROOT, SOURCE, packages, planted


def test_each_package_has_one_fault():
    assert len(FAULTS) == len({fault.package for fault in FAULTS})
    assert {fault.package for fault in FAULTS} == packages()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.package)
def test_a_fault_has_its_place(fault):
    text = (ROOT / fault.path).read_text()
    assert text.count(fault.old) == 1
    assert fault.old != fault.new
    compile(text.replace(fault.old, fault.new), fault.path, "exec")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.package)
def test_its_tests_are_there(fault):
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert f"def {name.partition('[')[0] or 'test_'}" in text


def test_a_file_is_restored(tmp_path):
    fault = FAULTS[0]
    place = tmp_path / fault.path
    place.parent.mkdir(parents=True)
    place.write_text(f"before\n{fault.old}\n")
    with planted(fault, tmp_path):
        assert place.read_text() == f"before\n{fault.new}\n"
    assert place.read_text() == f"before\n{fault.old}\n"
    place.write_text(f"{fault.old}\n{fault.old}\n")
    with pytest.raises(ValueError, match=f"{SOURCE / fault.package}.* 2 times, not once"), planted(fault, tmp_path):
        pass
