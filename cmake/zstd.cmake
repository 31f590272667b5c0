# cmake -DIN=FILE -DOUT=FILE -P zstd.cmake: packs one file as a zstd frame, with what CMake has of zstd in itself.
cmake_minimum_required(VERSION 3.25)
file(ARCHIVE_CREATE OUTPUT ${OUT} PATHS ${IN} FORMAT raw COMPRESSION Zstd COMPRESSION_LEVEL 9)
