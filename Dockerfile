# The course on a Mac, or on any machine with Docker, x86 or ARM: docker compose up
FROM python:3.12-slim
COPY . /course
# PyTorch's CPU build, from PyTorch's own index. The ziglang wheel compiles the kernels.
RUN cd /course && python -m pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    -c constraints.txt ".[lab]" && rm -r /course
# The folder that compose.yaml takes from your machine. Progress and compiled kernels are kept there, too.
ENV XDG_DATA_HOME=/my-course/.data XDG_CACHE_HOME=/my-course/.cache
# Jupyter's keys need a folder whose files can be closed to others; one of Windows has none.
ENV JUPYTER_RUNTIME_DIR=/tmp/jupyter
EXPOSE 8888
CMD ["python", "-m", "course_utils", "start", "/my-course", "--lab", "--ip=0.0.0.0", "--port=8888", "--no-browser"]
