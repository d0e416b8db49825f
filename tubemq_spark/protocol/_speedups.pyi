from _typeshed import ReadableBuffer as Buffer, WriteableBuffer

def crc32(data: Buffer, by_tables: bool, /) -> int: ...
def unwrap_answer(data: Buffer, /) -> tuple[int, int, bytes] | None: ...
def outline_fetch(body: Buffer, /) -> tuple[bool, int, str, int, int | None, int, int, bool, int] | None: ...
def scan_fetch(body: Buffer, count: int, /) -> tuple[bytes, bytes] | None: ...
def gather(data: Buffer, starts: Buffer, ends: Buffer, /) -> tuple[bytes, bytes]: ...
def append(
    target: WriteableBuffer,
    size: int,
    borders: WriteableBuffer,
    data: Buffer,
    starts: Buffer,
    ends: Buffer,
    /,
) -> int: ...
def runs(texts: Buffer, borders: Buffer, most: int, /) -> list[int] | None: ...
def encode_sends(
    values: Buffer,
    value_borders: Buffer,
    prefixes: Buffer,
    prefix_borders: Buffer,
    backs: Buffer,
    back_borders: Buffer,
    codes: Buffer,
    rows: Buffer,
    places: Buffer,
    place_borders: Buffer,
    counts: Buffer,
    timeout_ms: int,
    first_serial_no: int,
    /,
) -> bytes | None: ...
def read_send_answers(
    data: Buffer,
    position: int,
    serial_nos: WriteableBuffer,
    offsets: WriteableBuffer,
    message_ids: WriteableBuffer,
    append_times: WriteableBuffer,
    /,
) -> tuple[int, int]: ...
