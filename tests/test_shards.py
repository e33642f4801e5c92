"""A list in shards, and their merge: every row once, in the list's order, or a sentence that says what is wrong."""

import json
from pathlib import Path

import pytest

from agentic_iqa_local.batch.inputs import Item, ManifestError, read_manifest
from agentic_iqa_local.batch.runs import Results
from agentic_iqa_local.batch.shards import Shard, ShardError, list_file, share_of
from agentic_iqa_local.batch.work import Assessing
from agentic_iqa_local.cli.assess import wanted
from agentic_iqa_local.cli.assess_options import parse
from agentic_iqa_local.cli.console import Console
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.config import Settings

IDENTITY = {"model": {"tiny": "aa"}, "versions": {"torch": "2.15.0"}, "query": "Rate it."}
WORK = Assessing(Settings(), "letters")


def row_of(item, error="too dark", seconds=0.0):
    row = WORK.failure(item, error)
    row.seconds = seconds
    return row


@pytest.fixture
def items(tmp_path):
    return [Item(tmp_path / f"{i}.png") for i in range(10)]


def write(
    folder: Path, items, shard: str, *, order=reversed, identity=IDENTITY, leave_out=(), name=None, **row
) -> Path:
    """The rows of one shard, in another order than its items."""
    share = share_of(items, Shard.parse(shard))
    path = share.shard.file(folder / "rows.jsonl")
    path = path.with_name(name) if name else path
    results = Results(path, identity | {"shard": share.identity()})
    share.write_list(path)
    for item in order(share.items):
        if item.image.name not in leave_out:
            results.append(row_of(item, **row))
    results.close()
    return path


def merged(capsys, *words) -> tuple[int, str, str]:
    status = main(["merge", *map(str, words)])
    told = capsys.readouterr()
    return status, told.out, told.err


def names(path: Path) -> list[str]:
    return [Path(json.loads(line)["image"]).name for line in path.read_text().splitlines()]


# Which items a shard has


@pytest.mark.parametrize(("total", "of"), [(10, 3), (10, 10), (64, 64), (1000, 7), (5, 1)])
def test_every_item_is_in_one_shard_in_the_lists_order(total, of):
    parts = [Shard(part, of).places(total) for part in range(1, of + 1)]
    assert [place for part in parts for place in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_more_shards_than_pictures_is_a_sentence():
    with pytest.raises(ShardError, match="expected at least 64 pictures, got 63"):
        Shard(3, 64).places(63)


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "1/0", "-1/4", "1/4/5", "a/b", "1/65537", "１/2"])
def test_a_shard_that_there_cannot_be_is_refused(text):
    with pytest.raises(ValueError, match="expected PART/OF"):
        Shard.parse(text)


def test_files_of_shards_sort_as_their_numbers_do():
    names = [Shard(part, 64).file(Path("out/rows.jsonl")).name for part in range(1, 65)]
    assert names[2] == "rows.03-of-64.jsonl"
    assert names == sorted(names)


def test_a_manifest_is_shared_out_and_only_the_share_must_be_there(tmp_path):
    for i in (3, 4, 5):
        (tmp_path / f"{i}.png").touch()
    manifest = tmp_path / "list.csv"
    manifest.write_text("image\n" + "".join(f"{i}.png\n" for i in range(10)))
    keys = []
    mine = read_manifest(manifest, places=Shard(2, 3).places, told=keys.append)
    assert [item.image.name for item in mine] == ["3.png", "4.png", "5.png"]
    assert len(keys) == 10
    with pytest.raises(ManifestError, match=r"line 2: image: there is no file .*0\.png"):
        read_manifest(manifest, places=Shard(1, 3).places)
    for doubled, line in (("0.png", 12), ("4.png", 12)):  # of another share, and of this one
        manifest.write_text("image\n" + "".join(f"{i}.png\n" for i in range(10)) + doubled)
        with pytest.raises(ManifestError, match=f"line {line}: the same as"):
            read_manifest(manifest, places=lambda _: range(3, 6))


def test_the_command_takes_its_share_into_a_file_of_its_own(tmp_path, monkeypatch):
    for i in range(5):
        (tmp_path / f"{i}.png").touch()
    (tmp_path / "list.jsonl").write_text("".join(json.dumps({"image": f"{i}.png"}) + "\n" for i in range(5)))
    monkeypatch.chdir(tmp_path)
    for source in (["--manifest", "list.jsonl"], ["*.png"]):
        args = parse([*source, "--out", "rows.jsonl", "--shard", "2/2"], "")
        assert [item.image.name for item in wanted(args, Console(open("/dev/null", "w")))] == [  # noqa: SIM115
            "2.png",
            "3.png",
            "4.png",
        ]
        assert args.out.name == "rows.2-of-2.jsonl"
        assert args.share.identity()["items"] == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shard", "1/2"], "--shard: expected --out FILE"),
        (["--shard", "3/2", "--out", "r.jsonl"], "--shard: expected PART/OF such as 3/64"),
        (["--shard", "1/2", "--out", "r.csv"], "--shard: expected without --csv"),
        (["--shard", "1/2", "--out", "r.jsonl", "--sort", "q"], "--shard: expected without --sort"),
    ],
)
def test_what_does_not_go_with_a_shard_is_wrong_usage(words, said, capsys):
    with pytest.raises(SystemExit):
        parse(["a.png", "b.png", *words], "")
    assert said in capsys.readouterr().err


# Merging


def test_shards_become_one_file_in_the_lists_order_that_goes_on(tmp_path, items, capsys):
    shards = [write(tmp_path, items, f"{part}/3") for part in (3, 1, 2)]
    out = tmp_path / "rows.jsonl"
    assert merged(capsys, *shards, "--out", out) == (
        0,
        f"10 rows of 3 shards in {out}, 10 of them failures\n",
        "",
    )
    assert names(out) == [f"{i}.png" for i in range(10)]
    lines = {line for shard in shards for line in shard.read_text().splitlines()}
    assert set(out.read_text().splitlines()) == lines  # byte for byte
    assert Results(out, IDENTITY, resume=True).done == {item.key for item in items}
    assert merged(capsys, *shards, "--out", out)[2].startswith(f"error: {out}: holds rows already")


def test_what_is_missing_is_named_and_merged_only_when_that_is_allowed(tmp_path, items, capsys):
    shards = [write(tmp_path, items, f"{part}/5", leave_out=("3.png",)) for part in (1, 2, 4)]
    torn = shards[2].read_text()
    shards[2].write_text(torn[:-5])  # its last row is of 6.png, since they were written in reverse
    out = tmp_path / "rows.jsonl"
    status, told, said = merged(capsys, *shards, "--out", out)
    assert (status, told, out.exists()) == (1, "", False)
    assert "the list is not whole: no file of shards 3, 5" in said
    status, told, said = merged(capsys, *shards, "--out", out, "--allow-missing")
    assert status == 0
    assert "no file of shards 3, 5; no row of " in said
    assert "3.png" in said
    assert "6.png" in said
    assert names(out) == ["0.png", "1.png", "2.png", "7.png"]


def test_a_picture_without_a_row_in_a_shard_that_is_there_is_named(tmp_path, items, capsys):
    shards = [write(tmp_path, items, f"{part}/2", leave_out=("3.png",)) for part in (1, 2)]
    status, _, said = merged(capsys, *shards, "--out", tmp_path / "rows.jsonl")
    assert status == 1
    assert f"no row of {tmp_path / '3.png'}; run those shards to their end" in said
    assert sorted(path.name for path in tmp_path.glob("rows.jsonl*")) == []


def test_rows_that_are_there_twice_are_taken_once_or_refused(tmp_path, items, capsys):
    first, second = (write(tmp_path, items, f"{part}/2") for part in (1, 2))
    again = write(tmp_path, items, "2/2", name="again.jsonl", seconds=9.0)
    out = tmp_path / "rows.jsonl"
    status, told, _ = merged(capsys, first, second, again, "--out", out)
    assert (status, names(out)) == (0, [f"{i}.png" for i in range(10)])
    assert "5 that were there twice" in told
    out.unlink()
    other = write(tmp_path, items, "2/2", name="other.jsonl", error="too bright")
    status, _, said = merged(capsys, first, second, other, "--out", out)
    assert (status, out.exists()) == (2, False)
    assert f"{other}: expected one row of {tmp_path / '9.png'}, got two that differ" in said


def test_shards_of_other_runs_and_lists_are_refused_by_name(tmp_path, items, capsys):
    first = write(tmp_path, items, "1/2")
    out = tmp_path / "rows.jsonl"
    other_model = IDENTITY | {"model": {"tiny": "bb"}}
    for second, said in (
        (write(tmp_path, items, "2/2", identity=other_model), 'model.tiny is "aa" there and "bb" here'),
        (write(tmp_path, items, "2/3"), "shard.of is 2 there and 3 here"),
        (write(tmp_path, items[::-1], "2/2", name="turned.jsonl"), "shard.list is "),
    ):
        status, _, told = merged(capsys, first, second, "--out", out)
        assert (status, out.exists()) == (2, False)
        assert f"{second} is of another run than {first}" in told
        assert said in told


def test_what_is_no_shard_or_was_changed_is_refused(tmp_path, items, capsys):
    first, second = (write(tmp_path, items, f"{part}/2") for part in (1, 2))
    out = tmp_path / "rows.jsonl"

    def refused() -> str:
        status, _, told = merged(capsys, first, second, "--out", out)
        assert (status, out.exists()) == (2, False)
        assert not out.with_name("rows.jsonl.partial").exists()
        return told

    results = Results(second, json.loads(Path(f"{second}.run.json").read_text())["identity"], resume=True)
    assert f"{second}: a process is writing it" in refused()
    results.close()
    listed = list_file(second).read_text()
    list_file(second).write_text(listed.replace("7.png", "77.png"))
    assert f"expected pictures of its list, got a row of {tmp_path / '7.png'}" in refused()
    list_file(second).write_text("".join(sorted(listed.splitlines(keepends=True), reverse=True)))
    assert "expected the list that the runs began with" in refused()
    list_file(second).write_text(listed + listed)
    assert "expected another number of items than 10" in refused()
    list_file(second).write_bytes(b"\xff\n" * 5)
    assert "expected the list of the shard's items" in refused()
    list_file(second).write_text("{}\n" + listed.partition("\n")[2])
    assert f"expected pictures of its list, got a row of {tmp_path / '5.png'}" in refused()
    list_file(second).unlink()
    assert "expected the list of the shard's items" in refused()
    list_file(second).write_text(listed)
    second.write_text(second.read_text().replace('"too dark"', '"too dark', 1))
    assert f"{second}, line 1: expected JSON" in refused()
    Path(f"{second}.run.json").write_text(json.dumps({"identity": IDENTITY}))
    assert f"{second}: expected rows of assess --shard" in refused()
