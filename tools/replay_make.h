/* The halves of `kvant replay` that write traces. */
#ifndef KVANT_TOOLS_REPLAY_MAKE_H
#define KVANT_TOOLS_REPLAY_MAKE_H

/* Both return an exit status. numbers: as kvant_traffic_parse. */
int replay_generate(const char *numbers, const char *output);
int replay_from_dump(const char *dump, const char *output);

#endif
