# docker build --build-arg TORCH=cpu|cuda -t lmi-server .
ARG TORCH=cpu

FROM python:3.11-slim-bookworm AS base-cpu

FROM nvidia/cuda:13.0.1-base-ubuntu24.04 AS base-cuda
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM base-${TORCH}
ARG TORCH

LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true
LABEL org.opencontainers.image.licenses=Apache-2.0

# g++: the native CPU kernels; Triton compiles its launchers with gcc, and mpirun gets a small library that keeps its port
# off the network.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ libc6-dev make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/lmi
COPY Makefile pyproject.toml constraints.txt README.md LICENSE ./
COPY container container
COPY lmi_server lmi_server
COPY engines engines
COPY kernels kernels
COPY properties_examples properties_examples
RUN PIP_NO_CACHE_DIR=1 make install TORCH=${TORCH} EXTRAS=

# /opt/ml/model may be read-only; everything that is written goes to the cache.
ENV PATH=/opt/lmi/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    LMI_CACHE_DIR=/tmp/.cache/lmi \
    HF_HOME=/tmp/.cache/huggingface

EXPOSE 8080
ENTRYPOINT ["/opt/lmi/container/entrypoint.sh"]
CMD ["serve"]
