/* Which tags a pipeline tells apart: two tags are alike if every codec of it treats them alike. */
#ifndef KVANT_STORE_TAG_CLASSES_H
#define KVANT_STORE_TAG_CLASSES_H

#include <kvant/kvant.h>

/* The class of a tag is the smallest tag that is like it; all zero where no codec looks at tags. */
kvant_status kvant_tag_classes(const kvant_plan *plan, unsigned char classes[256]);

#endif
