/* Has no kvant_plugin_query. */
__attribute__((visibility("default"))) int some_other_function(void);

int some_other_function(void) {
    return 1;
}
