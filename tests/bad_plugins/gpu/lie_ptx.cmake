# cmake -DIN=<kivi's PTX> -DOUT=<file> [-DMORE=<PTX>] -P lie_ptx.cmake
#
# PTX for a lie: with MORE, kivi's kernels and those of MORE; without, kivi's kernels with nothing in them.
file(READ ${IN} text)
if(MORE)
  file(READ ${MORE} more)
  string(REGEX REPLACE "^.*\\.address_size 64" "" more "${more}")
  string(APPEND text "${more}")
else()
  string(REPLACE "\n{\n" "\n{\n\tret;\n" text "${text}")
endif()
file(WRITE ${OUT} "${text}")
