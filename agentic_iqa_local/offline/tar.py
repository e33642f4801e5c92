"""The headers of a bundle's archive, byte by byte.

They are not left to the standard library's tarfile, which judges them in the tests: a header that is read is
compared with the one that the manifest implies, so its bytes may never change. tarfile's depend on its
version (it leaves the device's numbers empty, where bundles have zeros), it refuses sizes of 8 GiB and more
in a POSIX header, and in GNU's format a long path becomes a member of its own.
"""

import struct

BLOCK = 512  # bytes; an archive consists of blocks


def tar_header(path: str, size: int) -> bytes:
    """The header of a file of `size` bytes: POSIX ustar without owner or time, and from 8 GiB on the size in
    binary, as GNU tar writes it. Raises ValueError for a path that is too long."""
    prefix, name = "", path
    if len(path) > 100:
        cut = path.find("/", len(path) - 101)
        prefix, name = path[: max(cut, 0)], path[cut + 1 :]
    if len(name) > 100 or len(prefix) > 155:
        raise ValueError(
            "expected a path that a tar header holds (100 characters after a '/', 155 before it), got"
            f" {path!r}"
        )
    length = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    fields = struct.pack(
        "100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x",
        name.encode(),
        b"0000644\0",  # mode
        b"0000000\0",  # user
        b"0000000\0",  # group
        length,
        b"00000000000\0",  # time
        b" " * 8,  # where the checksum goes
        b"0",  # a regular file
        b"",  # no link
        b"ustar\0",
        b"00",
        b"",  # user's name
        b"",  # group's name
        b"0000000\0",  # device
        b"0000000\0",
        prefix.encode(),
    )
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def tar_padding(size: int) -> int:
    """How many zeros follow a file of `size` bytes."""
    return -size % BLOCK
