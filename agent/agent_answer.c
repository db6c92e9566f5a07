/* What this node answers to elastic-ctl explain from another host: what it would say here, and the
 * facts of its ranks, from which who asked judges as the nodes do among themselves. */
#include <stdlib.h>

#include "agent/agent_hang.h"
#include "agent/agent_internal.h"
#include "agent/answer.h"
#include "base/cleanup.h"
#include "rendezvous/codec.h"

#define HEAD_MAX (16u * 1024)

static int add_head(struct er_agent *agent, struct er_buf *text)
{
    const struct er_assignment *a = agent->group ? er_group_assignment(agent->group) : NULL;
    ER_CLEANUP(er_buf_done) struct er_buf findings;
    int rc;

    er_buf_init(&findings, HEAD_MAX / 2);
    rc = er_agent_diagnosis_json(agent, -1, 0, &findings);
    if (!rc)
        rc = er_buf_add_str(text, "{");
    if (!rc) {
        const struct er_field fields[] = {
            ER_INT("v", ER_ANSWER_VERSION),
            ER_STR("host", agent->hostname),
            ER_UINT("generation", a ? a->generation : 0),
            ER_INT("node_rank", a ? a->node_rank : -1),
            ER_INT("nnodes", a ? a->nnodes : 0),
            ER_JSON("findings", er_buf_str(&findings)),
        };

        rc = er_fields_json(text, fields, ER_ARRAY_N(fields));
    }
    return rc ? rc : er_buf_add_str(text, "}\n");
}

void er_agent_on_query(void *user, const struct er_query *query)
{
    struct er_agent *agent = user;
    ER_CLEANUP(er_cleanup_free)
    struct er_hang_fact *facts = calloc(ER_HANG_FACTS_MAX, sizeof(*facts));
    ER_CLEANUP(er_cleanup_free) unsigned char *bytes = malloc(ER_HANG_FACTS_BYTES);
    ER_CLEANUP(er_buf_done) struct er_buf text;
    size_t n;

    er_buf_init(&text, HEAD_MAX + ER_HANG_FACTS_BYTES);
    if (!facts || !bytes || !agent->hang || add_head(agent, &text))
        return; /* as if this node were away */
    n = er_hang_facts_encode(facts, er_agent_hang_facts(agent, facts), bytes);
    if (er_buf_add(&text, bytes, n) == 0)
        er_driver_answer(agent->driver, query, text.data, text.len);
}
