"""Results on record: what a kill leaves, and that nothing is lost beside it."""

from research.run_log import RunLog


def test_what_is_added_is_read_again_with_six_digits(tmp_path):
    run_log = RunLog(tmp_path / "deep" / "runs.jsonl")
    assert run_log.read() == {}
    run_log.add("a-0", {"reward": [0.123456789, 12345678.0], "seed": 3, "nested": {"x": 1e-9 / 3}, "none": None})
    assert run_log.read() == {
        "a-0": {"reward": [0.123457, 12345700.0], "seed": 3, "nested": {"x": 3.33333e-10}, "none": None}
    }


def test_a_torn_line_costs_its_own_result_only(tmp_path):
    run_log = RunLog(tmp_path / "runs.jsonl")
    run_log.add("a-0", {"x": 1})
    run_log.add("a-1", {"x": 2})
    whole = run_log.path.read_bytes()
    for cut in range(1, len(whole) // 2):
        run_log.path.write_bytes(whole[:-cut])
        run_log.add("a-2", {"x": 3})
        found = run_log.read()
        assert found["a-0"] == {"x": 1}
        assert found["a-2"] == {"x": 3}
        assert ("a-1" in found) == (cut == 1)  # without its line's end it is whole
