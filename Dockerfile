# syntax=docker/dockerfile:1
# On processors:   docker build -t kbert .
# On NVIDIA GPUs:  docker build --build-arg EXTRAS=gpu -t kbert-gpu . && docker run --gpus all kbert-gpu
# More extras of setup.py: --build-arg EXTRAS=serve,onnx
FROM python:3.11-slim

ARG EXTRAS=""

# The sources are only there while this runs; what is built among them is thrown away.
RUN --mount=type=bind,target=/source,rw \
    pip install --no-cache-dir --constraint /source/constraints.txt "/source${EXTRAS:+[$EXTRAS]}"

# What NVIDIA's runtime mounts into a container that is not one of NVIDIA's own.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

RUN useradd --create-home kbert && mkdir /work && chown kbert /work
USER kbert
WORKDIR /work

CMD ["python", "-m", "kbert.doctor"]
