"""How sbatch splits its command line and its header; recorded from the sbatch of Slurm 22.05."""

from __future__ import annotations

import pytest

from cotenant.jobfiles.sbatch import InvalidWord, header_words, split_options


def split(line):
    settings, end = split_options(line.split())
    return [(setting.option.name, setting.value) for setting in settings], end


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("-J a -pc --mem=4G job.sh -J b", ([("job-name", "a"), ("partition", "c"), ("mem", "4G")], 4)),
        ("-Hp c", ([("hold", None), ("partition", "c")], 2)),
        ("-pH", ([("partition", "H")], 1)),
        ("-J=q", ([("job-name", "=q")], 1)),
        ("--part c --job-n d", ([("partition", "c"), ("job-name", "d")], 4)),
        ("--nice 5", ([("nice", None)], 1)),
        ("--nice=5 -k --exclusive", ([("nice", "5"), ("no-kill", None), ("exclusive", None)], 3)),
        ("--hold -- -J", ([("hold", None)], 2)),
        ("-t -1", ([("time", "-1")], 2)),
        ("- -J a", ([], 0)),
    ],
)
def test_options_are_split_as_getopt_does(line, wanted):
    assert split(line) == wanted


@pytest.mark.parametrize(
    ("line", "message", "place"),
    [
        ("-J a --bogus", "no such option: `--bogus`", 2),
        ("-HZ", "no such option: `-Z`", 0),
        ("--hold=1", "`--hold` takes no value, found `1`", 0),
        ("-H -J", "`-J` has no value", 1),
        ("--no", "`--no` may be --no-kill, --no-requeue, --nodefile, --nodelist, --nodes", 0),
    ],
)
def test_words_that_sbatch_refuses(line, message, place):
    with pytest.raises(InvalidWord, match=message) as caught:
        split(line)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#SBATCH -J 'a b' -p c", ["-J", "a b", "-p", "c"]),
        ('#SBATCH -J "a # b" # x', ["-J", "a # b"]),
        ("#SBATCH -J a#b -p c", ["-J", "a"]),
        (r"#SBATCH -J a\bc", ["-J", "abc"]),
        (r"#SBATCH -J a\"b", ["-J", 'a"b']),
        (r"#SBATCH -J \#x", ["-J", "#x"]),
        (r"#SBATCH -J a\ b", ["-J", "a", "b"]),
        ("#SBATCH -J '' -p c", ["-J"]),
        ('#SBATCH -p "b"c', ["-p", "bc"]),
        ("#SBATCH-J q\r", ["-J", "q"]),
        (" #SBATCH -J q", []),
        ("##SBATCH -J q", []),
    ],
)
def test_words_of_a_header_line(line, words):
    found, refused = header_words(f"#!/bin/sh\n{line}\n")
    assert ([word.text for word in found], refused) == (words, [])


def test_the_header_ends_at_the_first_command():
    found, refused = header_words("#!/bin/sh\n\n  # x\n#SBATCH -J 'x\n#SBATCH -p c\ntrue\n#SBATCH -q z\n")
    assert [(word.text, word.line) for word in found] == [("-p", 5), ("c", 5)]
    assert refused == [(4, "a ' is not closed")]
