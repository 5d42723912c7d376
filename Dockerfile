# SAGE-GRPO for NVIDIA GPUs: the wheel is built in one stage and installed with the pinned versions in the other.
# Linted, not built by us. docker build -t sage-grpo .
FROM python:3.12.12-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt build hatchling \
    && python -m build --wheel --no-isolation --outdir /dist .

FROM python:3.12.12-slim-bookworm
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 HF_HOME=/workspace/hub MPLBACKEND=Agg
COPY constraints.txt /tmp/constraints.txt
# torch first and by itself: its wheels for Linux bring CUDA
RUN pip install -c /tmp/constraints.txt torch==2.13.0
COPY --from=wheel /dist /tmp/dist
RUN pip install -c /tmp/constraints.txt "$(ls /tmp/dist/*.whl)[http,models]" \
    && rm -rf /tmp/dist \
    && useradd --create-home --uid 1000 sage \
    && mkdir /workspace \
    && chown sage /workspace
USER 1000
WORKDIR /workspace
ENTRYPOINT ["sage-grpo"]
CMD ["--help"]
