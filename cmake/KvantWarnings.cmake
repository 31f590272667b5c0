# Warnings for every target of this tree; errors where KVANT_WERROR is on (CI).
set(common -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wundef -Wpointer-arith -Wcast-qual -Wwrite-strings)
add_compile_options(${common} $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>)
if(KVANT_WERROR)
  add_compile_options(-Werror)
endif()
