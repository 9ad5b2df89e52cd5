"""The command line of `lmi compare`: what goes together, and what it says before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from container.compare.compare_command import compare


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "two configurations or more are compared; given 0"),
        (["one"], "given 1"),
        (["one", "two", "--examples", "x"], "--examples goes with --aws-post"),
        (["--aws-post", "one"], "--aws-post brings its own configurations; given one"),
        (
            ["--aws-post", "--input-tokens", "32"],
            "--input-tokens: the post's two scenarios say how many tokens",
        ),
        (["--aws-post", "--output-tokens", "8"], "--output-tokens"),
        (["one", "two", "--output", "nowhere/at/all.md"], "nowhere/at/all.md: there is no folder"),
        (["one", "two", "--rounds", "0"], "--rounds"),
        (["one", "two", "--dialect", "latin"], "'lmi', 'openai'"),
    ],
)
def test_words_that_do_not_go_together(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(compare, arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_arms_that_cannot_be_served_are_all_named_and_nothing_is_started(tmp_path: Path) -> None:
    folder = tmp_path / "typo"
    folder.mkdir()
    (folder / "serving.properties").write_text("engine=MPI\nbatch_sise=2\n")
    output = tmp_path / "report.md"
    done = CliRunner().invoke(compare, [str(folder), str(tmp_path / "none"), "--output", str(output)])
    assert done.exit_code == 1
    assert "typo: " in done.output
    assert "did you mean batch_size?" in done.output
    assert "none: " in done.output
    assert "there is no such file" in done.output
    assert not output.exists()


def test_the_posts_examples_may_be_elsewhere_and_a_sentence_says_when_they_are_not(tmp_path: Path) -> None:
    done = CliRunner().invoke(compare, ["--aws-post", "--examples", str(tmp_path)])
    assert done.exit_code == 1
    assert "smollm2-dynamic" in done.output
    assert "--examples names that folder" in done.output
