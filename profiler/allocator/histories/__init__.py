"""Memory snapshots of real cards: read, replayed without tolerance, and asked about other settings and cards.

The state before the first entry is found by undoing the entries from the last state. Requests and frees go to the
model, and the driver answers as recorded; both are compared block by block. A snapshot does not name its torch, so the
replay tries both orders of free blocks. Tests replay histories of others from the folder in `RECORDED_HISTORIES`
(default `../shared/recorded_histories`), and are skipped without it.
"""
