import io
import json
import os
import sys

from agentic_iqa_local.commands.console import SafeStream, safe_streams
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.text import one_line, path_text, printable

STEERING = "\x1b[2J\x9b2J\x7f\u202e\u2028\U000e0001\r\n\t"


def test_what_steers_a_terminal_is_escaped_and_json_stays_the_same_json():
    assert one_line("a\x1b[2J\x9b\n") == r"a\u001b[2J\u009b\n"
    stored = json.dumps({STEERING: ["é", STEERING]}, ensure_ascii=False)
    assert one_line(stored).isprintable()
    assert json.loads(one_line(stored)) == json.loads(stored)


def test_words_of_other_languages_stay():
    assert one_line("Fête 東京 🌲 \\x1b") == "Fête 東京 🌲 \\x1b"


def test_an_error_is_one_line():
    assert str(UserError(f"{STEERING}.png: expected")).isprintable()


def test_bytes_of_a_name_that_are_not_utf8_are_told():
    assert one_line(os.fsdecode(b"a\xff.png")) == r"a\xff.png"


def test_no_two_paths_have_the_same_text():
    names = [
        b"a\xff",
        b"a\\xff",
        b"a\\\\xff",
        b"a\\\xff",
        b"a\\\\\xff",
        b"\\x",
        b"\\\\x",
        b"a",
        b"a\\b",
        b"a\\\\b",
        b"\xfe\xff",
        b"\\xfe\xff",
    ]
    texts = [path_text(os.fsdecode(name)) for name in names]
    assert len(set(texts)) == len(names)
    assert all(text.encode() for text in texts)  # UTF-8 holds them
    assert path_text("photos/Fête \\ 1.png") == "photos/Fête \\ 1.png"


def test_a_name_that_no_file_can_have_is_text_all_the_same():
    assert path_text("a\ud800.png") == r"a\ud800.png"


def test_lines_stay_in_what_is_printed():
    assert printable("a\n\tb\x1b[31m") == "a\n\tb\\u001b[31m"


def test_commands_print_nothing_that_steers_a_terminal(capsys):
    with safe_streams():
        print(f"a{STEERING}b")
        print("x\x9b", file=sys.stderr)
        sys.stderr.writelines(["y\x1b\n"])
    told = capsys.readouterr()
    assert told.out == "a\\u001b[2J\\u009b2J\\u007f\\u202e\\u2028\\udb40\\udc01\r\n\tb\n"
    assert told.err == "x\\u009b\ny\\u001b\n"
    assert not isinstance(sys.stdout, SafeStream)


def test_a_safe_stream_is_the_place_that_it_writes_to():
    stream = io.StringIO()
    assert SafeStream(stream) == stream
    assert stream == SafeStream(stream)
    assert SafeStream(stream) in {stream}
