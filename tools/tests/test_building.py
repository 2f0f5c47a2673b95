from semblend_tools.build_command import sorted_complaints

OURS = ["semblend-core", "semblend-sglang"]


def test_a_wheel_of_somebody_else_that_claims_another_platform_breaks_nothing_of_ours() -> None:
    report = "nvidia-cusparselt-cu13 0.8.1 is not supported on this platform\n"
    assert sorted_complaints(report, OURS) == ([], ["nvidia-cusparselt-cu13 0.8.1 is not supported on this platform"])


def test_a_missing_requirement_is_broken_beside_it() -> None:
    missing = "semblend-sglang 0.1.0 requires numpy, which is not installed."
    report = f"{missing}\nnvidia-cusparselt-cu13 0.8.1 is not supported on this platform\n"
    assert sorted_complaints(report, OURS)[0] == [missing]


def test_a_wheel_of_ours_must_fit_the_platform() -> None:
    line = "semblend_core 0.1.0 is not supported on this platform"
    assert sorted_complaints(line, OURS) == ([line], [])
