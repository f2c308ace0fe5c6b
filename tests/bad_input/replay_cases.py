"""Bad input of `python -m profiler.replay`."""

import gzip
import pickle

from cases import DEEP_PATH, LONG, Case, Special, bad

TRACES, SEGMENTS, SETTINGS = "device_traces", "segments", "allocator_settings"


def entry(**changes: object) -> dict[str, object]:
    """One entry of a history, with changes."""
    return {"action": "alloc", "addr": 0, "size": 512, "stream": 0, **changes}


def history(*entries: object) -> dict[str, object]:
    """A snapshot of one device."""
    return {TRACES: [list(entries)], SEGMENTS: []}


def segments(*found: object) -> dict[str, object]:
    """A snapshot of segments alone."""
    return {TRACES: [[]], SEGMENTS: list(found)}


def settings(found: object) -> dict[str, object]:
    """An empty snapshot with settings."""
    return {TRACES: [[]], SEGMENTS: [], SETTINGS: found}


def raw(content: bytes, *, says: str = "") -> Case:
    """Bytes that are no snapshot."""
    return bad("f.pickle", files={"f.pickle": content}, says=says)


def plain(value: object, *, says: str = "") -> Case:
    """A pickle of plain values that is no snapshot."""
    return raw(pickle.dumps(value), says=says)


GOOD = pickle.dumps(history(entry()))
FILE = {"f.pickle": GOOD, "g.pickle": GOOD}
BLOCK = {"size": 512}

CASES = (
    bad(says="snapshot= … name a file or a folder"),
    bad("", says="snapshot= … must be a file or a folder"),
    bad("nosuch.pickle", says="snapshot= … no such file"),
    bad("~nosuchuser/x.pickle", says="snapshot= … no such file"),
    bad("a\x00b", says="snapshot= … cannot be read"),
    bad(LONG + ".pickle", says="snapshot= … cannot be read"),
    bad(DEEP_PATH, says="snapshot= … cannot be read"),
    bad("/dev/zero", says="snapshot= … cannot be read"),
    bad("/dev/null", says="snapshot= … cannot be read"),
    bad("/proc/self/mem", says="snapshot= … is empty"),
    bad(
        "folder",
        files={"folder/x.txt": ""},
        says="snapshot= … has no file that ends in .pickle, .pkl, .pickle.gz, .pkl.gz",
    ),
    bad("f.pickle", files={"f.pickle": Special.FIFO}, says="snapshot= … cannot be read"),
    bad("f.pickle", files={"f.pickle": Special.ZERO}, says="snapshot= … cannot be read"),
    bad("f.pickle", files={"f.pickle": Special.LOOP}, says="snapshot= … cannot be read"),
    bad(
        "folder",
        files={"folder/a.pickle": b"x", "folder/b.pickle": b"y"},
        sentences=2,
        says="snapshot= … is not a pickle, or a damaged one … snapshot= … is not a pickle, or a damaged one",
    ),
    bad("-x", "f.pickle", files=FILE, says="argument= … is not of the form key=value"),
    bad(
        "--device",
        "f.pickle",
        files=FILE,
        sentences=2,
        says="device= … must be a whole number … snapshot= … name a file",
    ),
    bad(
        "devcie=1",
        "f.pickle",
        files=FILE,
        says="devcie= … is unknown; the keys are alloc_conf, gpu, device, figure, format",
    ),
    bad("device=x", "f.pickle", files=FILE, says="device= … must be a whole number of at"),
    bad("device=-1", "f.pickle", files=FILE, says="device= … must be a whole number of at"),
    bad("device=5", "f.pickle", files=FILE, says="device= … the snapshot has 0"),
    bad("device=99999", "f.pickle", files=FILE, says="device= … must be a whole number of at"),
    bad("gpu=x", "f.pickle", files=FILE, says="gpu= … must be one of h100-80gb, h200-141gb, b200-180gb, a100-40gb,"),
    bad("gpu=", "f.pickle", files=FILE, says="gpu= … must be one of h100-80gb, h200-141gb, b200-180gb, a100-40gb,"),
    bad("format=x", "f.pickle", files=FILE, says="format= … must be one of table, json"),
    bad(
        "figure=",
        "f.pickle",
        files=FILE,
        says="figure= … must be a path that ends in .png or .svg, or a folder for several",
    ),
    bad("figure=x.txt", "f.pickle", files=FILE, says="figure= … must end in .png or .svg, or be a folder"),
    bad("figure=x.png", "f.pickle", "g.pickle", files=FILE, says="figure= … is one file, and there are 2 snapshots"),
    bad(
        "alloc_conf=x",
        "f.pickle",
        files=FILE,
        says="alloc_conf= … 'x' is not a key of PYTORCH_ALLOC_CONF; the keys are",
    ),
    bad(
        "alloc_conf=:", "f.pickle", files=FILE, says="alloc_conf= … '' is not a key of PYTORCH_ALLOC_CONF; the keys are"
    ),
    bad(
        "alloc_conf=expandable_segments:maybe",
        "f.pickle",
        files=FILE,
        says="alloc_conf= … expandable_segments must be True or False",
    ),
    bad(
        "alloc_conf=max_split_size_mb:0",
        "f.pickle",
        files=FILE,
        says="alloc_conf= … max_split_size_mb must be a whole number of at least 20",
    ),
    bad(
        "alloc_conf=garbage_collection_threshold:nan",
        "f.pickle",
        files=FILE,
        says="alloc_conf= … garbage_collection_threshold must be a number above 0 and below 1",
    ),
    bad(
        "alloc_conf=\x1b[31m",
        "f.pickle",
        files=FILE,
        says="alloc_conf= … '\\x1b[31m' is not a key of PYTORCH_ALLOC_CONF; the keys are",
    ),
    plain({}, says="snapshot= … must be a mapping with 'segments' and 'device_traces'"),
    plain([], says="snapshot= … must be a mapping with 'segments' and 'device_traces'"),
    plain(None, says="snapshot= … must be a mapping with 'segments' and 'device_traces'"),
    plain(1, says="snapshot= … must be a mapping with 'segments' and 'device_traces'"),
    plain({TRACES: 1, SEGMENTS: []}, says="snapshot= … must be a mapping with 'segments' and 'device_traces'"),
    plain({TRACES: [1], SEGMENTS: []}, says="device_traces[0]= … must be a list of entries"),
    plain(history(1), says="device_traces[0][0]= … must be a mapping"),
    plain(history({}), says="device_traces[0][0].action= … must be a text"),
    plain(history(entry(action=[1])), says="device_traces[0][0].action= … must be a text"),
    plain(history(entry(size=-1)), says="device_traces[0][0].size= … must be a whole number from 1 to 1099511627776"),
    plain(
        history(entry(size=2**70)), says="device_traces[0][0].size= … must be a whole number from 1 to 1099511627776"
    ),
    plain(history(entry(size=True)), says="device_traces[0][0].size= … must be a whole number from 1 to 1099511627776"),
    plain(
        history(entry(size=float("nan"))),
        says="device_traces[0][0].size= … must be a whole number from 1 to 1099511627776",
    ),
    plain(history(entry(addr="x")), says="device_traces[0][0]= … both must be whole numbers"),
    plain(history(entry(stream=None)), says="device_traces[0][0]= … both must be whole numbers"),
    plain(segments(1), says="segments[0]= … must be a mapping with 'address' and 'blocks'"),
    plain(segments({}), says="segments[0]= … must be a mapping with 'address' and 'blocks'"),
    plain(
        segments({"address": 2**80, "blocks": []}), says="segments[0]= … must be a mapping with 'address' and 'blocks'"
    ),
    plain(
        segments({"address": 0, "blocks": [1]}),
        says="segment at 0x0, block 0= … must be a mapping, its size from 1 to 1099511627776",
    ),
    plain(
        segments({"address": 0, "blocks": [{"size": 0}]}),
        says="segment at 0x0, block 0= … must be a mapping, its size from 1 to 1099511627776",
    ),
    plain(
        segments({"address": 0, "blocks": [{"size": 512, "address": 7}]}),
        says="segment at 0x0, block 0= … must begin where the one before ends",
    ),
    plain(
        segments({"address": 0, "blocks": [BLOCK], "stream": "x"}),
        says="segment at 0x0, stream= … must be a whole number",
    ),
    plain(
        segments({"address": 0, "blocks": [BLOCK], "segment_pool_id": 1}),
        says="segments[0].segment_pool_id= … must be a pair",
    ),
    plain(
        segments({"address": 0, "blocks": [BLOCK]}, {"address": 0, "blocks": [BLOCK]}),
        says="segments= … must lie apart",
    ),
    plain(settings(1), says="allocator_settings= … must be a mapping"),
    plain(
        settings({"PYTORCH_CUDA_ALLOC_CONF": 1}), says="allocator_settings.PYTORCH_CUDA_ALLOC_CONF= … must be a text"
    ),
    plain(settings({"max_split_size": "x"}), says="allocator_settings.max_split_size= … must be a whole number"),
    plain(
        settings({"garbage_collection_threshold": 5}),
        says="allocator_settings.garbage_collection_threshold= … must be a number from 0 and below 1",
    ),
    plain(
        settings({"roundup_power2_divisions": 1}),
        says="allocator_settings.roundup_power2_divisions= … must be powers of two by interval",
    ),
    plain(
        settings({"roundup_power2_divisions": {"1": 3}}),
        says="allocator_settings.roundup_power2_divisions= … must be powers of two by interval",
    ),
    plain(
        settings({"roundup_power2_divisions": {"1": 1.5}}),
        says="allocator_settings.roundup_power2_divisions= … must be powers of two by interval",
    ),
    raw(b"", says="snapshot= … is empty"),
    raw(b"x", says="snapshot= … is not a pickle, or a damaged one"),
    raw(b"\x80", says="snapshot= … is not a pickle, or a damaged one"),
    raw(b"\x80\x04.", says="snapshot= … is not a pickle, or a damaged one"),
    raw(b"PK\x03\x04", says="snapshot= … is an archive, as torch.save writes it, not a pickle"),
    raw(b"\x1f\x8b", says="snapshot= … ends in the middle: it was not written to its end"),
    raw(b"\x1f\x8b" + b"x" * 100, says="snapshot= … cannot be read"),
    raw(gzip.compress(b"x"), says="snapshot= … is not a pickle, or a damaged one"),
    raw(gzip.compress(GOOD)[:-4], says="snapshot= … ends in the middle: it was not written to its end"),
    raw(GOOD[:-3], says="snapshot= … is not a pickle, or a damaged one"),
    raw(pickle.dumps(print), says="snapshot= … refers to builtins.print, and a memory snapshot has containers,"),
    raw(
        b'cos\nsystem\n(S"ls"\ntR.',
        says="snapshot= … refers to os.system, and a memory snapshot has containers, numbers",
    ),
    raw(b"\x80\x04r\xff\xff\xff\x7f.", says="snapshot= … is not a pickle, or a damaged one"),
    raw(b"\x80\x05\x8e" + b"\xff" * 8, says="snapshot= … is not a pickle, or a damaged"),
    raw(b"Pfoo\n.", says="snapshot= … refers to an object outside of it, and a memory snapshot has"),
    raw(b"I" + b"9" * 5000 + b"\n.", says="snapshot= … is not a pickle, or a damaged one"),
    raw(
        b"\x80\x04" + b"]" * 3000 + b"a" * 2999 + b".",
        says="snapshot= … must be a mapping with 'segments' and 'device_traces'",
    ),
    raw(gzip.compress(b"\0" * 10_000_000), says="snapshot= … is not a pickle, or a damaged one"),
)
