"""Films of agents, and runs that are watched while they go on."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

from asyncrl.__main__ import main as command
from asyncrl.api.drawing import ObservedAgent, Outputs, look_of
from asyncrl.api.films import Filmed, Step
from asyncrl.api.playing import load_run, play_episodes, play_run
from asyncrl.commands import watch
from asyncrl.commands.train import main as train
from asyncrl.commands.watch import Reader, follow, main, sparkline
from asyncrl.envs.environment import BadEnvironment
from asyncrl.runtime import terminal
from asyncrl.storage.run_folder import RunFolder
from tests.support import status_of, the_run

WORDS = ["--workers", "2", "--total-steps", "600", "--seed", "7", "--backend", "serial", "--quiet"]
WORDS += ["--evaluation-interval-steps", "300", "--evaluation-episodes", "2"]


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on Catch, which the tests only read."""
    folder = tmp_path_factory.mktemp("runs")
    assert train("asyncrl.a3c", ["--env-id", "Catch", *WORDS, "--runs-dir", str(folder)]) == 0
    return the_run(folder)


@pytest.mark.parametrize("name", ["watch", "enjoy"])
def test_an_episode_becomes_a_gif_by_pillow_alone(
    catch: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six episodes of Catch, nine steps each: one would be over too soon."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)

    assert command([name, str(catch)]) == 0

    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].startswith("6 episodes, scores ")
    assert captured.err == ""
    with Image.open("watch.gif") as film:
        assert film.n_frames == 6 * (9 + 1)
        film.seek(9)
        assert film.info["duration"] == 4 * 200  # the end
        assert film.size == (200 + 332, 400)


@pytest.mark.slow
def test_a_film_of_a_game_is_what_ffmpeg_makes_of_it(tmp_path: Path) -> None:
    """Atari, from its third step on, each second one; the actions have their names."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="needs the extra [video]")
    words = ["--env-id", "ALE/Pong-v5", *WORDS, "--total-steps", "20", "--evaluation-interval-steps", "0"]
    words += ["--evaluation-episodes", "1", "--max-episode-steps", "30", "--runs-dir", str(tmp_path / "runs")]
    assert train("asyncrl.a3c", words) == 0
    run = the_run(tmp_path / "runs")

    film = tmp_path / "film.mp4"
    assert main([str(run), "--out", str(film), "--skip", "3", "--steps", "20", "--every", "2"]) == 0

    assert ffmpeg.count_frames_and_secs(str(film))[0] == 10
    look = look_of(load_run(run), 400)
    assert look.names == ("noop", "fire", "right", "left", "rightfire", "leftfire")
    assert (look.unit, look.value_scale) == ("discounted by 0.99, rewards clipped to 1", 1.0)


def test_without_pictures_a_film_shows_what_the_agent_sees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number with the name that Gymnasium gives it; expected returns are in the units of the score."""
    words = ["--env-id", "CartPole-v1", *WORDS, "--runs-dir", str(tmp_path / "runs")]
    assert train("asyncrl.a3c", words) == 0
    run = the_run(tmp_path / "runs")
    monkeypatch.setitem(sys.modules, "pygame", None)

    assert main([str(run), "--out", str(tmp_path / "film.gif"), "--steps", "5"]) == 0

    told = capsys.readouterr().err
    assert "needs a package for drawing: pip install " in told
    assert "[video]\"; showing the agent's observations instead" in told
    look = look_of(load_run(run), 401)
    assert look.names == ("left", "right")
    assert look.seen_names == ("Cart Position", "Cart Velocity", "Pole Angle", "Pole Angular Velocity")
    assert (look.height, look.unit) == (400, "discounted by 0.99")
    moments = load_run(run).run.handles.moments.returns.merged()
    assert look.value_scale == pytest.approx((moments[2] / moments[0]) ** 0.5, rel=1e-6)


def test_what_is_shown_is_the_episode_that_evaluate_plays_first(catch: Path) -> None:
    """The same seed and policy: the same score and length; probabilities add up to 1."""
    loaded, steps = load_run(catch, seed=5), list[tuple[Step, Outputs]]()
    agent = ObservedAgent(loaded)

    def look_on(step: Step) -> None:
        steps.append((step, agent.outputs))

    play_episodes(loaded, 1, lambda inner: Filmed(inner, look_on, math.inf), agent)
    played = play_run(load_run(catch, seed=5), episodes=1)

    assert [steps[-1][0].score + steps[-1][0].reward] == played.returns
    assert [step.is_end for step, _ in steps] == [False] * 9 + [True]
    assert played.lengths == [9]
    assert [step.number for step, _ in steps] == list(range(10))
    for step, outputs in steps:
        assert outputs["probabilities"].sum() == pytest.approx(1)
        assert step.action == outputs["probabilities"].argmax()  # Catch is evaluated greedily
        assert outputs["value"].shape == ()


def test_an_environment_that_breaks_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a run that makes environments anew: an episode that was lost is none to show."""
    words = ["--env-id", "CartPole-v1", *WORDS, "--on-env-error", "rebuild", "--runs-dir", str(tmp_path / "runs")]
    assert train("asyncrl.a3c", words) == 0

    def broken(self: Any, action: Any) -> Any:
        raise BadEnvironment("the pole is gone")

    monkeypatch.setattr("asyncrl.envs.gymnasium_env.GymnasiumEnvironment.step", broken)
    monkeypatch.setattr("asyncrl.envs.spec.EnvSpec._try_out", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()

    assert main([str(the_run(tmp_path / "runs"))]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "asyncrl watch: error: the pole is gone"


class Growing(gymnasium.Env[Any, Any]):
    """Its pictures grow in each of its five steps, and are grey lists of numbers."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return np.zeros(2, np.float32), 0.0, self.at == 5, False, {}

    def render(self) -> Any:
        return np.full((20 + 7 * self.at, 30), 40 * self.at).tolist()


def test_pictures_of_other_forms_and_sizes_become_a_film_of_one_size(tmp_path: Path) -> None:
    """That of the first."""
    words = ["--env-id", f"{__name__}:Growing", *WORDS, "--total-steps", "50", "--evaluation-interval-steps", "0"]
    assert train("asyncrl.a3c", [*words, "--runs-dir", str(tmp_path / "runs")]) == 0

    assert main([str(the_run(tmp_path / "runs")), "--out", str(tmp_path / "film.gif")]) == 0

    with Image.open(tmp_path / "film.gif") as film:
        assert (film.n_frames, film.size) == (10 * (5 + 1), (600 + 332, 400))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "x.png"], "--out x.png: the name of a film must end in .gif, .mp4, .mkv or .mov"),
        (["--out", "no/x.gif"], "--out no/x.gif: there is no such folder"),
        (["--greedy", "--sampled"], "--greedy and --sampled are mutually exclusive"),
        (["--steps", "0"], "--steps must be 1 to 100_000, got 0"),
        (["--skip", "50", "--out", "x.gif"], "the episode ended before step 50: give a smaller --skip"),
    ],
)
def test_mistakes_are_told_in_one_line(
    catch: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    """And no film is left."""
    monkeypatch.chdir(tmp_path)
    assert main([str(catch), *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class TestLive:
    """A run that is going on, as another process sees it."""

    @pytest.fixture
    def copied(self, catch: Path, tmp_path: Path) -> RunFolder:
        """A run of which the newest status says that it runs, and that nobody trains."""
        path = Path(shutil.copytree(catch, tmp_path / "copy"))
        status = status_of(path) | {"state": "running", "exit_code": None, "steps": 300, "steps_per_second": 50.0}
        (path / "status.json").write_text(json.dumps(status))
        return RunFolder.open(path)

    @pytest.fixture
    def going(self, copied: RunFolder) -> Iterator[RunFolder]:
        """The same run while a process trains it."""
        with copied.occupied():
            yield copied

    def test_a_run_goes_on_while_a_process_is_there(self, going: RunFolder, catch: Path) -> None:
        """However long ago it has written something; one that has ended says that."""
        os.utime(going.status_file, (0, 0))
        assert not Reader(going).read().ended
        assert Reader(RunFolder.open(catch)).read().ended
        going.status_file.unlink()
        assert not Reader(going).read().ended  # it has just been started

    def test_it_is_followed_to_its_end(
        self, going: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Watched without a file to write, a run that is going on is shown, and its last line said when it ends."""

        def end(seconds: float) -> None:
            status = status_of(going.path) | {"state": "finished", "reason": "total_steps reached", "steps": 600}
            going.status_file.write_text(json.dumps(status))

        monkeypatch.setattr(watch.time, "sleep", end)
        assert main([str(going.path)]) == 0

        out = capsys.readouterr().out.splitlines()
        assert "600 steps (100 %)" in out[0]
        assert out[-1].startswith("finished: total_steps reached; best evaluation ")

    def test_it_is_followed_no_further_than_its_reader(self, going: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        """After `| head -1` the command ends, though the run goes on."""
        reading, writing = os.pipe()
        clock = iter(range(0, 10**6, 100))
        monkeypatch.setattr(terminal.time, "monotonic", lambda: float(next(clock)))
        monkeypatch.setattr(watch.time, "sleep", lambda seconds: os.close(reading))
        with os.fdopen(writing, "w") as out:
            monkeypatch.setattr(sys, "stdout", out)
            with pytest.raises(BrokenPipeError):
                follow(going)
            os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # for what is left in the buffer

    def test_a_run_that_was_killed_is_not_waited_for(
        self, copied: RunFolder, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Its status still says that it runs."""
        assert follow(copied) == 1
        assert "\ndied: its process is gone: it was killed, or its machine went down; " in capsys.readouterr().out

    def test_what_is_shown_is_what_the_files_say(self, going: RunFolder) -> None:
        """Steps and speed of the status, scores of the evaluator, staleness of the supervisor's newest row."""
        reader = Reader(going)
        summary = reader.read()

        rows = [json.loads(line) for line in going.evaluator_file.read_text().splitlines()]
        assert (summary.steps, summary.total_steps, summary.steps_per_second) == (300, 600, 50.0)
        means = [row["mean"] for row in rows]
        assert (summary.evaluation, summary.best_score) == (means[-1], max(means))
        assert reader.curves["evaluations"].startswith(f"{sparkline(means)}  ")
        assert (reader.title, len(summary.worker_silence), summary.ended) == ("a3c on Catch", 2, False)

    def test_a_damaged_status_is_waited_for(self, going: RunFolder) -> None:
        """It is replaced as a whole, but by another program on another file system it need not be."""
        going.status_file.write_text("{")
        assert Reader(going).read().steps == 0


def test_a_curve_of_letters_goes_from_the_lowest_to_the_highest() -> None:
    """Neighbours are averaged where there are more values than letters; a flat line is low."""
    assert sparkline([0.0, 7.0, 3.0]) == "▁█▄"
    assert sparkline([1.0, 3.0, 5.0, 7.0], width=2) == "▁█"
    assert sparkline([2.0, 2.0]) == "▁▁"
