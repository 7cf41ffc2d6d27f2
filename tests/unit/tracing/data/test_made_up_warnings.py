"""What a person reads of many files that were made up."""

from __future__ import annotations

from cotenant.tracing.data.made_up_warnings import made_up, shortened


def test_the_sixth_and_further_files_that_were_replaced_alike_are_one_sentence():
    sounds = [made_up(f"`sounds/{number}.wav`", "16000:float32") for number in range(262)]
    labels = [made_up(f"`labels/{number}.txt`", "1:int64") for number in range(5)]
    warnings = ["first", *sounds[:100], *labels, *sounds[100:], "last"]
    more = "257 more such files are not on this machine; replaced by synthetic data: 16000:float32"
    assert shortened(warnings) == ("first", *sounds[:5], more, *labels, "last")


def test_few_sentences_stay_as_they_are():
    warnings = ("is not on this machine", *(made_up(f"`{name}`", "8:float32") for name in "abcde"), "b")
    assert shortened(warnings) == warnings
