"""Episodes played with what a run has learnt."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl.api.films import LEAST_HEIGHT, Film, Filmed, Step, frame_rate, magnified, watchable, with_pictures
from asyncrl.commands import evaluate as evaluating
from asyncrl.commands.evaluate import (
    Config,
    main,
    no_op_starts,
    play_what,
)
from asyncrl.commands.train import main as train
from asyncrl.core.errors import UsageError
from asyncrl.core.extras import to_install
from asyncrl.envs import spec as spec_module
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime import seeding
from tests.support import evaluations_of, the_run

HERE = __name__


class Blind(gymnasium.Env[Any, Any]):
    """Goes on for ever, and cannot draw."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        raise OSError("no pencil")


def blind(**arguments: Any) -> Blind:
    """A factory, as users write them."""
    return Blind(**arguments)


def make_run(folder: Path, *words: str, algorithm: str = "a3c", env_id: str = "Catch") -> Path:
    """A short run with one evaluation, at its end."""
    given = ["--env-id", env_id, "--workers", "2", "--total-steps", "600", "--seed", "7", "--runs-dir", str(folder)]
    given += ["--backend", "serial", "--quiet", "--evaluation-interval-steps", "0", "--evaluation-episodes", "12"]
    assert train(f"asyncrl.{algorithm}", [*given, *words]) == 0
    return the_run(folder)


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on Catch, which the tests only read."""
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """What `evaluate --json` says."""

    def run(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*words, "--json"]) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run


@pytest.mark.parametrize(
    ("algorithm", "env_id", "words"),
    [
        ("a3c", "Catch", []),
        ("a3c", "CartPole-v1", ["--normalize-observations", "--evaluation-policy", "sampled"]),
        ("a3c", "Pendulum-v1", ["--evaluation-episodes", "2"]),
        ("a3c", "Catch", ["--lstm-cells", "8", "--update", "locked"]),
        ("n_step_q", "Catch", ["--statistics", "per-worker"]),
        ("one_step_sarsa", "CartPole-v1", []),
    ],
)
def test_the_episodes_are_those_of_the_runs_own_evaluation_if_they_are_drawn_alike(
    tmp_path: Path, evaluate: Callable[..., dict[str, Any]], algorithm: str, env_id: str, words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The same parameters, moments and settings give the same returns with the evaluator's random streams."""
    run = make_run(tmp_path, *words, algorithm=algorithm, env_id=env_id)
    (evaluation,) = evaluations_of(run)
    monkeypatch.setattr("asyncrl.api.playing.NO_PART", 0)

    said = evaluate(str(run), "--seed", "7", "--episodes", str(len(evaluation["returns"])))

    assert said["returns"] == evaluation["returns"]
    assert said["lengths"] == evaluation["lengths"]
    assert (said["algorithm"], said["env_id"], said["steps"]) == (algorithm, env_id, evaluation["steps"])
    assert (said["mean"], said["std"]) == pytest.approx((evaluation["mean"], evaluation["std"]))
    assert (said["min"], said["max"]) == (min(evaluation["returns"]), max(evaluation["returns"]))


def test_no_stream_of_a_run_with_the_same_seed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its workers' nor its evaluator's, of environments or of actions, before or after a resumption."""
    drawn: set[tuple[int, int]] = set()
    derived = seeding.derive

    def note(seed: int, purpose: int, *place: int) -> int:
        result = derived(seed, purpose, *place)
        if purpose in (seeding.ENVIRONMENT, seeding.ACTIONS):
            drawn.add((purpose, result))
        return result

    monkeypatch.setattr(seeding, "derive", note)
    monkeypatch.setattr("asyncrl.runtime.roles.derive", note)
    run = make_run(tmp_path, "--seed", "0")
    assert train("asyncrl.a3c", ["--resume", str(run), "--total-steps", "1200"]) == 0
    of_the_run = set(drawn)
    drawn.clear()

    assert main([str(run), "--seed", "0", "--episodes", "12"]) == 0

    assert {purpose for purpose, _ in drawn} == {seeding.ENVIRONMENT, seeding.ACTIONS}
    assert drawn.isdisjoint(of_the_run)


def test_a_seed_repeats_the_episodes_and_another_one_does_not(
    catch: Path, evaluate: Callable[..., dict[str, Any]]
) -> None:
    """Of 40 balls at least one falls elsewhere."""
    first, again, other = (evaluate(str(catch), "--episodes", "40", "--seed", seed) for seed in ("3", "3", "4"))

    assert first == again
    assert first["returns"] != other["returns"]


def test_the_policy_is_the_runs_own_unless_one_is_asked_for(
    catch: Path, evaluate: Callable[..., dict[str, Any]]
) -> None:
    """On vectors A3C evaluates greedily."""
    assert evaluate(str(catch))["policy"] == "greedy"
    assert evaluate(str(catch), "--greedy")["policy"] == "greedy"
    assert evaluate(str(catch), "--sampled")["policy"] == "sampled"


def test_episodes_that_never_end_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the run's own row, in its last lines, and when it is evaluated later; with what to do."""
    monkeypatch.setattr(spec_module, "LONGEST_EPISODE", 300)
    line = "of {} evaluated episodes had not ended after 300 steps and were cut: if the environment "
    line += "never ends an episode, give the run --max-episode-steps"

    run = make_run(tmp_path, "--evaluation-episodes", "2", env_id=f"{HERE}:blind")

    assert capsys.readouterr().out.splitlines()[-3] == "2 " + line.format(2)
    (row,) = evaluations_of(run)
    assert (row["cut"], row["lengths"]) == (2, [300, 300])
    assert main([str(run), "--episodes", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 " + line.format(3)


def test_nothing_is_said_of_episodes_that_end(catch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By themselves or by a limit of their own."""
    assert main([str(catch), "--episodes", "3"]) == 0
    assert "cut" not in capsys.readouterr().out
    assert evaluations_of(catch)[0]["cut"] == 0


def test_text_holds_all_episodes_and_their_summary(catch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catch's episodes are 9 steps long, each."""
    assert main([str(catch), "--episodes", "3"]) == 0

    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("a3c on Catch, best checkpoint, trained for 704 steps")
    assert out[1] == "3 episodes, greedy policy, seed 0"
    assert len(out[2].removeprefix("returns: ").split()) == 3
    assert out[3] == "lengths: 9 9 9"
    assert out[4].endswith("mean length 9.0 steps")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_narrow_table_has_whole_numbers(
    catch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Words go on below, and where the terminal is narrower still it wraps the lines."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = {
        "run": "a/run/of-a-long-name-with-a-seed-1", "algorithm": "one_step_q", "env_id": "ALE/SpaceInvaders-v5",
        "checkpoint": "step_000010000000", "steps": 10_000_000, "policy": "sampled", "mean": -12345.67,
        "interval": (-12400.5, -12300.25), "min": -13000, "max": -12000, "human_normalized": -1193.9,
    }  # fmt: skip
    evaluating.show_all([row, row], Config((catch,)))

    out = capsys.readouterr().out
    for number in ("10,000,000", "-12345.67", "-12400.50 to -12300.25", "-13000", "-12000", "-1193.9"):
        assert number in out
    assert "\u2026" not in out


def test_all_checkpoints_stand_in_one_table(catch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of their steps; they are no seeds, so there is no total."""
    assert main([str(catch), "--checkpoint", "all", "--episodes", "2"]) == 0

    lines = capsys.readouterr().out.splitlines()
    names = [path.name for path in (catch / "checkpoints").iterdir()]
    assert sorted(names) == sorted(line.split()[3] for line in lines[1:-1])
    assert lines[1].split()[3:5] == ["step_000000000000", "0"]
    assert lines[-1] == "2 episodes each, seed 0"


def test_a_folder_of_runs_has_a_row_for_each_and_a_total(
    catch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that cannot be played is left out with a line that says why."""
    for name in ("one", "two", "broken"):
        shutil.copytree(catch, tmp_path / "runs" / name)
    shutil.rmtree(tmp_path / "runs" / "broken" / "checkpoints")

    assert main([str(tmp_path / "runs"), "--episodes", "4", "--json"]) == 0

    captured = capsys.readouterr()
    assert captured.err.startswith(f"skipped: {tmp_path / 'runs' / 'broken'}: ")
    said = json.loads(captured.out)
    assert [Path(one["run"]).name for one in said["results"]] == ["one", "two"]
    (total,) = said["totals"]
    assert (total["algorithm"], total["runs"], total["games"], total["normalized"]) == ("a3c", 2, 1, False)
    assert total["interquartile"] == said["results"][0]["mean"]


def test_a_run_is_played_once_however_often_it_is_named(catch: Path) -> None:
    """It would count as several seeds."""
    again = Config((catch, catch / ".." / catch.name, catch.parent))

    assert evaluating.choose(again) == [(catch, "best")]


def test_a_folder_that_may_not_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_file(self: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", is_file)
        assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"asyncrl evaluate: error: {tmp_path / 'config.json'}: Permission denied\n"


def test_no_op_starts_take_the_place_of_what_the_run_had() -> None:
    """Atari's settings that make a score comparable; not those that the network has learnt with."""
    spec = EnvSpec("ALE/Pong-v5", noop_max=0, sticky_actions=0.25, max_episode_steps=100, frame_skip=3, image_size=42)
    told = no_op_starts(spec)

    assert (told.noop_max, told.sticky_actions, told.step_cap) == (30, 0.0, 36_000)
    assert (told.frame_skip, told.image_size) == (3, 42)


def test_a_game_is_told_in_percent_of_a_human(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the reference scores that were asked for, which are named."""
    words = ["--total-steps", "20", "--evaluation-episodes", "1", "--max-episode-steps", "20"]
    run = make_run(tmp_path, *words, env_id="ALE/Freeway-v5")
    capsys.readouterr()

    assert main([str(run), "--episodes", "1", "--human", "human-starts"]) == 0

    lines = capsys.readouterr().out.splitlines()
    score = float(lines[2].removeprefix("returns: "))
    assert lines[5] == (
        f"human-normalised {100 * (score - 0.1) / 25.5:.1f} % (human starts, references of Gorila and double DQN)"
    )


def test_a_run_is_only_read(catch: Path, evaluate: Callable[..., dict[str, Any]]) -> None:
    """No file is made, changed or removed."""

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in catch.rglob("*") if path.is_file()}

    before = files()
    evaluate(str(catch), "--episodes", "2")

    assert files() == before


def test_checkpoints_can_be_named(catch: Path, evaluate: Callable[..., dict[str, Any]]) -> None:
    """best, newest, or the folder's name."""
    newest = max((catch / "checkpoints").glob("step_*"))

    assert evaluate(str(catch), "--checkpoint", "step_000000000000")["steps"] == 0
    assert evaluate(str(catch), "--checkpoint", "newest")["steps"] == int(newest.name.removeprefix("step_")) > 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--episodes", "0"], "--episodes must be 1 to 1_000_000, got 0"),
        (["--greedy", "--sampled"], "--greedy and --sampled are mutually exclusive: give only one"),
        (["--checkpoint", "step_9"], "checkpoints/step_9: no such checkpoint; available: step_000000000000, "),
        (["--seed", "-1"], "--seed must lie between 0 and 2^63, got -1"),
        (["--loud"], "there is no --loud"),
        (["--protocol", "no-op-starts"], "--protocol no-op-starts is for Atari, not for Catch: leave it out"),
        (["--checkpoint", "all", "--video", "x.mp4"], "--video films a single checkpoint of a single run: name it"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    catch: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is played."""
    assert refusal([str(catch), *words], capsys).count(line) == 1


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which the command refuses."""
    capsys.readouterr()
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("asyncrl evaluate: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


class TestBrokenRuns:
    """Runs that cannot be played."""

    @pytest.fixture
    def broken(self, catch: Path, tmp_path: Path) -> Path:
        """A copy that may be broken."""
        return Path(shutil.copytree(catch, tmp_path / "copy"))

    def test_nothing_given(self, capsys: pytest.CaptureFixture[str]) -> None:
        """No folder at all."""
        assert "give the folder of at least one run" in refusal([], capsys)

    def test_no_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A folder without config.json."""
        assert "is not a run" in refusal([str(tmp_path)], capsys)

    def test_a_damaged_best_checkpoint_names_the_others(self, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A flipped bit."""
        (weights,) = (broken / "checkpoints").glob("best_*/weights.safetensors")
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)

        line = refusal([str(broken)], capsys)
        assert "damaged, its SHA-256 differs" in line
        assert "available: step_000000000000" in line

    def test_a_foreign_algorithm_is_not_imported(self, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """config.json could name any module."""
        settings = json.loads((broken / "config.json").read_text())
        (broken / "config.json").write_text(json.dumps(settings | {"algorithm": "antigravity"}))

        assert "would import antigravity (algorithm)" in refusal([str(broken)], capsys)
        assert "antigravity" not in sys.modules

    def test_another_network_is_refused(self, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The settings no longer describe what the checkpoint holds."""
        settings = json.loads((broken / "config.json").read_text())
        settings["config"]["hidden_sizes"] = [5]
        (broken / "config.json").write_text(json.dumps(settings))

        assert "different layers" in refusal([str(broken)], capsys)

    def test_settings_that_are_no_json(self, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Torn by hand."""
        (broken / "config.json").write_text("{")

        assert "cannot be read" in refusal([str(broken)], capsys)


class TestVideo:
    """Films of the first episode."""

    def test_without_the_writer_there_is_one_line(
        self, catch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It names what to install."""
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)

        assert "--video needs imageio-ffmpeg: pip install" in refusal([str(catch), "--video", "x.mp4"], capsys)

    @pytest.mark.parametrize(
        ("video", "line"),
        [
            ("no/such/x.mp4", "there is no such folder"),
            ("x.png", "the name of a film must end in .gif, .mp4, .mkv or .mov"),
            ("x", "the name of a film must end in"),
        ],
    )
    def test_what_cannot_be_filmed_is_one_line(
        self, catch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, video: str, line: str
    ) -> None:
        """Before anything is played."""
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", object())

        assert line in refusal([str(catch), "--video", video], capsys)

    def test_a_package_that_draws_and_is_missing_is_one_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It names the extra, before anything is played."""
        run = make_run(tmp_path, env_id="CartPole-v1")
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", object())
        monkeypatch.setitem(sys.modules, "pygame", None)

        said = refusal([str(run), "--video", str(tmp_path / "x.mp4")], capsys)

        assert f"CartPole-v1 needs a package for drawing: {to_install('video')}" in said
        assert not (tmp_path / "x.mp4").exists()

    @pytest.mark.parametrize("display", ["", ":0"])
    def test_no_window_system_is_asked_for(self, monkeypatch: pytest.MonkeyPatch, display: str) -> None:
        """Unless there is one; and what the user has chosen stays."""
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setenv("DISPLAY", display)
        for name in ("SDL_VIDEODRIVER", "MUJOCO_GL"):
            monkeypatch.setenv(name, "")  # so that it is put back
            monkeypatch.delenv(name)
        with_pictures(EnvSpec("ALE/Pong-v5"))
        assert os.environ["SDL_VIDEODRIVER"] == "dummy"
        assert os.environ.get("MUJOCO_GL") == (None if display else "egl")

        monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
        with_pictures(EnvSpec("ALE/Pong-v5"))
        assert os.environ["SDL_VIDEODRIVER"] == "x11"

    def test_an_environment_that_cannot_draw_is_one_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever its render() raises."""
        run = make_run(tmp_path, "--evaluation-episodes", "1", env_id=f"{HERE}:blind")
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", object())

        said = refusal([str(run), "--video", str(tmp_path / "x.mp4")], capsys)

        assert f"{HERE}:blind cannot be filmed: OSError: no pencil" in said

    @pytest.mark.parametrize(
        ("env_id", "settings", "rate"),
        [
            ("ALE/Pong-v5", {}, 15.0),
            ("ALE/Pong-v5", {"frame_skip": 1}, 60.0),
            ("CartPole-v1", {}, 50.0),
            ("CartPole-v1", {"frame_skip": 5}, 10.0),
            (f"{HERE}:blind", {}, 30.0),
            ("Catch", {}, 5.0),
        ],
    )
    def test_a_film_runs_at_the_speed_of_the_game(self, env_id: str, settings: dict[str, Any], rate: float) -> None:
        """A picture per step, 60 frames a second on Atari, elsewhere as the environment says, or else 30."""
        assert frame_rate(EnvSpec(env_id, **settings)) == rate

    @pytest.mark.parametrize(
        ("rate", "pictures", "watched"), [(50.0, 500, 50.0), (50.0, 100, 10.0), (50.0, 9, 5.0), (1.5, 9, 1.5)]
    )
    def test_a_short_film_is_slowed_down(self, rate: float, pictures: int, watched: float) -> None:
        """To ten seconds, or five pictures a second, unless it is slower than that anyway."""
        assert watchable(rate, pictures) == watched

    def test_a_film_has_a_picture_per_step_of_the_first_episode(self) -> None:
        """And one of its end, magnified by a whole number."""
        pictures: list[np.ndarray] = []
        environment = EnvSpec("ALE/Pong-v5", max_episode_steps=5).make(1, evaluation=True)
        filmed = Filmed(environment, lambda step: pictures.append(magnified(step)))
        for _ in range(2):
            filmed.reset()
            while not any(filmed.step(0)[2:4]):
                pass

        assert [picture.shape for picture in pictures] == [(420, 320, 3)] * 6
        assert not (pictures[0] == pictures[0][0, 0]).all()  # it is not blank

    @pytest.mark.parametrize(("shape", "times"), [((51, 33, 3), 8), ((400, 90, 3), 1), ((1, 5000, 3), 1)])
    def test_small_pictures_are_magnified_by_a_whole_number(self, shape: tuple[int, int, int], times: int) -> None:
        """Unless they are too wide for that."""
        step = Step(np.zeros(shape, np.uint8), np.zeros(1), 0, 0.0, 0.0, 0)
        assert magnified(step).shape == (times * shape[0], times * shape[1], 3)

    def test_filming_changes_no_result(self, tmp_path: Path, catch: Path) -> None:
        """A real film, of CartPole, which real ffmpeg writes and reads back."""
        ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="needs the extra [video]")
        pytest.importorskip("pygame", reason="CartPole draws with it")
        run = make_run(tmp_path, env_id="CartPole-v1")
        file = tmp_path / "film.mp4"

        plain = play_what(run, "best", Config((run,), episodes=3))
        filmed = play_what(run, "best", Config((run,), episodes=3, video=str(file)))

        assert filmed == plain
        pictures, seconds = ffmpeg.count_frames_and_secs(str(file))
        assert pictures == plain.lengths[0] + 1
        assert seconds == pytest.approx(pictures / watchable(50.0, pictures), abs=0.1)
        assert next(ffmpeg.read_frames(str(file)))["size"][1] >= LEAST_HEIGHT

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio leaves a pipe
    def test_what_ffmpeg_cannot_write_is_one_line(self, tmp_path: Path) -> None:
        """It has no word for it but that its input ends, which the first pictures may come too soon to see."""
        pytest.importorskip("imageio_ffmpeg", reason="needs the extra [video]")
        (tmp_path / "film.mp4").mkdir()

        def shoot() -> None:
            with Film(tmp_path / "film.mp4", 15) as film:
                for _ in range(100):
                    film.add(np.zeros((400, 400, 3), np.uint8))

        with pytest.raises(UsageError, match="ffmpeg cannot write"):
            shoot()

    def test_a_film_that_is_not_whole_is_noticed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a full disk leaves it; what there is of it stays."""
        ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="needs the extra [video]")
        monkeypatch.setattr(ffmpeg, "count_frames_and_secs", lambda file: (2, 0.1))

        def shoot() -> None:
            with Film(tmp_path / "film.mp4", 15) as film:
                for _ in range(3):
                    film.add(np.zeros((400, 400, 3), np.uint8))

        with pytest.raises(UsageError, match="2 of 3 pictures could be written; is the disk full"):
            shoot()
        assert (tmp_path / "film.mp4").exists()


def test_a_human_is_compared_with_in_atari_only(catch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is played for a flag that says nothing."""
    assert main([str(catch), "--episodes", "1", "--human", "human-starts"]) == 2

    assert "--human is for Atari games with published scores, not for Catch: leave it out" in capsys.readouterr().err
