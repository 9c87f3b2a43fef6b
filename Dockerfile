# PUSL in a container, for the processor or an NVIDIA GPU:
#
#   docker build -t pusl .
#   docker build -t pusl:cuda --build-arg BASE=pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime --build-arg TORCH_INDEX= .
#   docker run --rm -v "$PWD:/data" pusl demo --out demo
#   docker run --rm -p 8000:8000 -v "$PWD/models/pusl:/model:ro" pusl serve --model /model --host 0.0.0.0
#
# BASE is an image with Python 3.10 or later. A CUDA base brings its own torch; for the CPU base TORCH_INDEX names an
# index with CPU builds, which are a tenth of the size.
ARG BASE=python:3.12-slim

FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir "build>=1.2" && python -m build --wheel --outdir /wheels

FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=serve
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_BREAK_SYSTEM_PACKAGES=1 \
    HF_HOME=/data/.cache/huggingface
COPY --from=build /wheels /wheels
RUN if [ -n "${TORCH_INDEX}" ]; then pip install --index-url "${TORCH_INDEX}" "torch>=2.6,<2.14"; fi \
    && pip install "$(echo /wheels/pusl-*.whl)[${EXTRAS}]" \
    && rm -r /wheels \
    && useradd --create-home --non-unique --uid 1000 pusl \
    && mkdir -p /data \
    && chown 1000 /data
USER 1000
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["pusl"]
CMD ["--help"]
