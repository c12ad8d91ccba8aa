# gemmgen for machines with GPUs: docker build -t gemmgen . && docker run --rm --gpus all gemmgen doctor
# Without --gpus all everything runs but timing: kernels are verified on the emulator. The driver comes from the host; the compiler,
# the disassembler and the binder of fat binaries are wheels, so that no CUDA toolkit is in the image.
FROM python:3.12-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev binutils libcairo2 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY . .
RUN pip install --no-cache-dir '.[cpu,fatbin,headers,pictures,sass,search]' 'nvidia-cuda-nvrtc==13.0.88' && rm -rf /src/*

RUN useradd --create-home gemmgen
USER gemmgen
WORKDIR /work
ENTRYPOINT ["gemmgen"]
CMD ["--help"]
