# docker build -t asyncrl .
# docker run --rm -it --shm-size 1g -v "$PWD/runs:/work/runs" asyncrl a3c
FROM python:3.11-slim

# Where torch's CPU wheels are, as PyTorch's own page says. Without it pip may take the CUDA build, which is never used.
ARG TORCH_INDEX=""

COPY setup.cfg setup.py pyproject.toml README.md LICENSE constraints.txt /opt/asyncrl/
COPY asyncrl /opt/asyncrl/asyncrl
# The compiler is for the kernels only.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && cd /opt/asyncrl \
    && pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -e . \
    && apt-get purge -y --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/*

# Put your own environments and algorithms here; runs are written to /work/runs.
WORKDIR /work
ENV PYTHONPATH=/work

# SIGTERM, which `docker stop` sends, ends a run in order; leave it more than the usual ten seconds.
ENTRYPOINT ["asyncrl"]
CMD ["--help"]
