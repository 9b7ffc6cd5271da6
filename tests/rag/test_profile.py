import pytest

from rag.profile import LARGE, SMALL, AnswerOptions


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [(135_000_000, SMALL), (999_999_999, SMALL), (1_000_000_000, LARGE), (7_000_000_000, LARGE), (None, LARGE)],
)
def test_the_profile_follows_the_models_size(parameters, expected) -> None:
    assert AnswerOptions().profile_for(parameters) == expected


def test_a_named_profile_wins_over_the_size() -> None:
    assert AnswerOptions(profile="large").profile_for(1) == LARGE
    assert AnswerOptions(profile="small").profile_for(None) == SMALL


def test_an_option_changes_its_part_of_the_profile_only() -> None:
    options = AnswerOptions(passages=3, citations="marks", follow_up="rewrite", history_turns=0, max_tokens=7)
    profile = options.profile_for(1)
    assert (profile.passages, profile.citations, profile.follow_up) == (3, "marks", "rewrite")
    assert (profile.history_turns, profile.max_tokens) == (0, 7)
    assert (profile.system, profile.stop_at_repetition) == (SMALL.system, True)


@pytest.mark.parametrize("wrong", [{"retrieve": 0}, {"passages": 0}, {"max_tokens": 0}, {"profile": "tiny"}])
def test_an_option_out_of_range_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AnswerOptions(**wrong)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'max_tokens'"):
        AnswerOptions(max_token=5)
