# Two ranks of collectives.py without torchrun, which ends the others as soon as one has ended.
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=2
MASTER_PORT=$(python -c "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])")
export MASTER_PORT
here=$(dirname "$0")
RANK=1 LOCAL_RANK=1 python "$here/collectives.py" "$@" &
RANK=0 LOCAL_RANK=0 python "$here/collectives.py" "$@"
