/* The rendezvous as it is built (rendezvous/rdzv*.c), for spin: three nodes and a store. README.md has the mapping to the code.
 *
 * A transaction of the store is one atomic step. It is applied, or applied with its answer lost, or applied late, when its sender has
 * given it up. A leader decides on what it sees (its view) and sends later; whatever may happen in between does. With VIEW=1 each
 * node also acts on the `world` that it saw last, which may be an older one.
 *
 * What may go wrong, and how often, is in the environment, so that one program checks all of it; see init.
 */
#define FORMING 1
#define SEALED  2
#define DONE    3
#define FAILED  4

/* Transactions; what a leader is about is one of them, or a step of its plan. */
#define T_END   1   /* a generation is over */
#define T_CLAIM 2   /* a number for a plan */
#define T_NEXT  3   /* planned change: claimed, ... */
#define T_GO    4   /* ... members are told to leave, ... */
#define T_CLEAR 5   /* ... or it is dropped */
#define T_B1    6   /* assignments: node 0 */
#define T_B2    7   /* nodes 1 and 2 */
#define T_SEAL  8
#define T_DONE  10
#define T_FAIL  11
#define T_RES   12  /* a node's result */
#define T_LEFT  13  /* a node's record */
#define T_CKPT  14  /* a commit */
#define D_SEAL  20  /* batches are written: judge, then seal */
#define D_WAIT  21  /* for workers, until their time is over */

#define G       31  /* numbers */
#define BUDGET  1   /* failures that are paid for */

/* Bugs to plant. */
#define B_NUMBER_REUSED        1
#define B_UNGUARDED            2
#define B_INCARNATION_IGNORED  3
#define B_COMMIT_NOT_FENCED    4
#define B_RESULT_NOT_FENCED    5
#define B_CHARGED_EARLY        6
#define B_SEAL_UNREADY         7
#define B_BATCH_UNKNOWN        8
#define B_LEFT_OUT_IS_READY    9
#define B_LEFT_BEFORE_STOP     10
#define B_LEFT_BEFORE_RESULT   11
#define B_START_AGAIN          12
#define B_NO_TAKEOVER          13
#define B_NO_REREGISTER        14
#define B_SILENT_IS_FINE       15
#define B_CHANGE_DOES_NOT_WAIT 16
#define B_PREPARED_STARTS      17

typedef row { byte a[3] };

/* ---- the store ---- */
byte wph = FORMING, wgen = 1, wlast, wnext, wtop = 1, wused;  /* world: phase, generation, last_sealed, next, taken, restarts */
byte wby, wseq, wrev = 1; bit wgo;                            /* writer, seq, its revision, next_go */
byte fence, lead, lsess;
bit  reg[3]; byte minc[3], left[3], busy[3], prep[3], mrev[3]; /* j/n/<node>: there, incarnation, left, running, prepared, revision */
byte ag[3], ai[3], ar[3], pg[3], pi[3], pr[3];                /* a/<node>: generation, incarnation, rank + 1; prev_* */
byte resg[3], resv[3];                                        /* j/r/<generation>/<node>: 1 success, 2 failure */

/* ---- what really happened; `bad`: a rule that was broken ---- */
byte plan_[3], bad;                                           /* plan_: of the sealed generation, rank + 1 + 4 * incarnation */
bit  genuine, fin;
int  lossy;                                                   /* generations in which a node died: its peers' workers fail */

/* ---- nodes ---- */
bit  alive[3], pre[3];                                        /* pre: prepared, not started */
byte inc[3], rg[3], nl[3], np[3], fgen[3], fval[3];           /* what runs; left and prepared as the node has them; a result that is due */
byte vph[3], vgen[3], vlast[3], vnext[3]; bit vgo[3];         /* world as the node saw it */
/* ---- leaders: session, what to do next, and on which revision it rests; the plan; seq of the newest write of world ---- */
byte lmy[3], lst[3], lrev[3], lgen[3], lseq[3], lfr[3], lah[3]; bit lu[3]; row lp[3];

/* ---- what may still go wrong ---- */
byte nlease, ncrash, nrest, nfail, ndly, nck, ntime, nprep;
bit  view, planned; byte min_ = 2, bug;

chan net = [1] of { byte, byte, byte, byte, byte, byte, byte, byte, bit };
byte ok, move_;                                               /* of one step */

#define TERM (wph == DONE || wph == FAILED)

/* What a leader reads from its view, and what transactions do, in C: spin cannot take expressions as long as these become. */
c_code {
    /* er_view_member_rank(), er_view_alive_member(), er_view_succeeded(), er_view_lost_member() */
    static int rank_of(int k)
    {
        if (now.wlast == 0)
            return 0;
        return now.ag[k] == now.wlast ? now.ar[k] : now.pg[k] == now.wlast ? now.pr[k] : 0;
    }
    static int alive_member(int k)
    {
        int inc = now.ag[k] == now.wlast ? now.ai[k] : now.pi[k];

        return now.reg[k] && rank_of(k) && (inc == now.minc[k] || now.bug == B_INCARNATION_IGNORED);
    }
    static int result(int k)
    {
        return now.wlast && now.resg[k] == now.wlast ? now.resv[k] : 0;
    }
    static int failed(int k)
    {
        return result(k) == 2;
    }
    static int succeeded(int k)
    {
        return rank_of(k) && result(k) == 1;
    }
    static int lost(int k)
    {
        return rank_of(k) && !alive_member(k) && result(k) != 1;
    }
    /* given(), er_view_ready(), silent(), has_quit() */
    static int given(int k)
    {
        if (now.bug == B_LEFT_OUT_IS_READY)
            return 0;
        if (now.ag[k] <= now.wlast)
            return now.ai[k] == now.minc[k] ? now.ag[k] : 0;
        return now.pi[k] == now.minc[k] ? now.pg[k] : 0;
    }
    static int ready(int k)
    {
        if (!now.reg[k])
            return 0;
        if (alive_member(k))
            return now.left[k] >= now.wlast;
        return now.left[k] >= now.busy[k] && now.left[k] >= given(k);
    }
    static int unready(int k)
    {
        return now.reg[k] && !ready(k);
    }
    static int says_nothing(int k)
    {
        return alive_member(k) && !ready(k) && !result(k) && now.bug != B_SILENT_IS_FINE;
    }
    static int has_quit(int k)
    {
        return alive_member(k) && !now.wgo && now.left[k] >= now.wlast && now.resg[k] < now.left[k];
    }
    static int newcomer(int k)
    {
        return now.reg[k] && !alive_member(k);
    }
    static int still(int k)
    {
        return alive_member(k) && now.left[k] < now.wlast;
    }
    static int fit(int k)
    {
        return now.reg[k] && (ready(k) || now.bug == B_SEAL_UNREADY);
    }
    static int can_take_part(int k)
    {
        return !now.reg[k] || (alive_member(k) ? now.left[k] < now.wlast : ready(k));
    }
    static int fine(int k)
    {
        return !rank_of(k) || result(k) == 1;
    }
    static int registered(int k)
    {
        return now.reg[k];
    }

    static int count(int (*is)(int))
    {
        return !!is(0) + !!is(1) + !!is(2);
    }
    /* rdzv_judge(): a failure is paid for, unless a member was lost or has not said how it went. */
    static int charge(void)
    {
        return count(failed) && (now.bug == B_CHARGED_EARLY || (!count(lost) && !count(says_nothing)));
    }

    /* ---- a leader and its plan ---- */
    static int mine(int n)
    {
        return now.lfr[n] && now.wby == n + 1 + 3 * now.inc[n] && now.wseq == now.lfr[n];
    }
    static int gone(int n, int k)
    {
        int v = now.lp[n].a[k];

        return v && (!now.reg[k] || now.minc[k] != v >> 2);
    }
    static int plan_holds(int n)
    {
        if (now.wrev != now.lrev[n] || now.wph != FORMING)
            return 0;
        for (int k = 0; k < 3; k++)
            if (gone(n, k) || (now.lp[n].a[k] && !ready(k) && now.bug != B_SEAL_UNREADY))
                return 0;
        return 1;
    }
    /* holds() of rdzv_ahead.c */
    static int change_holds(int n)
    {
        if (!now.lah[n] || now.lah[n] != now.wnext || !mine(n))
            return 0;
        for (int k = 0; k < 3; k++)
            if (gone(n, k) || (now.lp[n].a[k] && now.left[k] >= now.wnext))
                return 0;
        return 1;
    }
    /* count_open(): newcomers whose workers are not up */
    static int preparing(int n)
    {
        for (int k = 0; k < 3; k++)
            if (now.lp[n].a[k] && !alive_member(k) && now.prep[k] != now.wnext)
                return 1;
        return 0;
    }
    /* watch_generation() and rdzv_follow_ahead() */
    static int watch(int n)
    {
        if (count(fine) == 3)
            return T_DONE;
        if (count(failed) || count(lost) || count(has_quit))
            return T_END;
        if (now.wnext && (!change_holds(n) || count(succeeded)))
            return now.wgo ? T_END : T_CLEAR;
        if (now.wnext && !now.lu[n])
            return T_B1;
        if (now.wnext && now.wgo)
            return count(still) && now.bug != B_CHANGE_DOES_NOT_WAIT ? D_WAIT : T_SEAL;
        if (now.wnext)
            return preparing(n) ? D_WAIT : T_GO;
        if (!count(newcomer) || count(succeeded))
            return 0;
        if (now.planned && count(can_take_part) == 3)
            return T_NEXT;
        return now.planned && count(unready) ? 0 : T_END;
    }
    /* rdzv_form(), number_is_fresh() */
    static int form(int n)
    {
        if (charge() && now.wused == BUDGET)
            return T_FAIL;
        if (count(fit) < now.min_)
            return 0;
        return now.bug == B_NUMBER_REUSED || mine(n) ? T_B1 : T_CLAIM;
    }
    static int leads(int n)
    {
        return now.alive[n] && now.lmy[n] && now.lead == n + 1 && now.lsess == now.lmy[n] && !now.lst[n];
    }
    static int move(int n)
    {
        if (leads(n) && now.wph == SEALED)
            return watch(n);
        return leads(n) && now.wph == FORMING && (!count(unready) || now.bug == B_SEAL_UNREADY) ? form(n) : 0;
    }
    /* settled(): the ready deadline is over, and who is not ready is left out */
    static int move_late(int n)
    {
        return leads(n) && now.wph == FORMING && now.wlast && count(unready) ? form(n) : 0;
    }
    static void plan(int n, int (*is)(int))
    {
        int rank = 0;

        for (int k = 0; k < 3; k++)
            now.lp[n].a[k] = is(k) ? ++rank + 4 * now.minc[k] : 0;
    }

    /* ---- transactions ---- */
    /* What is wrong; trails show it. */
    enum { BAD_AFTER_THE_END = 1, BAD_NUMBER, BAD_SECOND_SEAL, BAD_RANKS, BAD_UNWRITTEN, BAD_STILL_RUNS, BAD_CHARGE, BAD_VERDICT,
           BAD_RESULT, BAD_COMMIT, BAD_START, BAD_FEW };

    static void wrong(int what, int is)
    {
        if (is && !now.bad)
            now.bad = what;
    }
    /* put_assign(): who is not in the plan keeps what it has */
    static void put(int k, int v, int g)
    {
        if (!v)
            return;
        if (now.wlast && now.ag[k] == now.wlast) {
            now.pg[k] = now.ag[k];
            now.pi[k] = now.ai[k];
            now.pr[k] = now.ar[k];
        } else if (!now.wlast || now.pg[k] != now.wlast) {
            now.pg[k] = now.pi[k] = now.pr[k] = 0;
        }
        now.ag[k] = g;
        now.ai[k] = v >> 2;
        now.ar[k] = v & 3;
    }
    static void seal(int g, const int *v)
    {
        int ranks = 0, n = 0;

        wrong(BAD_AFTER_THE_END, now.fin);
        wrong(BAD_SECOND_SEAL, g <= now.wlast);
        for (int k = 0; k < 3; k++) {
            ranks |= v[k] ? 1 << (v[k] & 3) : 0;
            n += v[k] != 0;
            wrong(BAD_UNWRITTEN, v[k] && (now.ag[k] != g || now.ai[k] != v[k] >> 2 || now.ar[k] != (v[k] & 3)));
            wrong(BAD_STILL_RUNS, v[k] && now.alive[k] && now.inc[k] == v[k] >> 2 && now.rg[k] && !now.pre[k]);
            now.plan_[k] = v[k];
        }
        wrong(BAD_RANKS, ranks != (1 << (n + 1)) - 2);
        wrong(BAD_FEW, n < now.min_);
        now.wph = SEALED;
        now.wgen = now.wlast = now.fence = g;
        now.wnext = now.wgo = now.genuine = 0;
    }
    static int end(int phase)
    {
        wrong(BAD_AFTER_THE_END, now.fin);
        for (int k = 0; k < 3; k++)
            wrong(BAD_VERDICT, phase == DONE && now.plan_[k] && !(now.resg[k] == now.wlast && now.resv[k] == 1));
        wrong(BAD_CHARGE, phase == FAILED && !(now.genuine && now.wused == BUDGET));
        now.wph = phase;
        now.wnext = now.fence = 0;
        now.fin = 1;
        return 1;
    }
    static int number(int g)
    {
        wrong(BAD_AFTER_THE_END, now.fin);
        wrong(BAD_NUMBER, g >= G || (g <= now.wtop && now.bug != B_UNGUARDED));
        now.wtop = g > now.wtop ? g : now.wtop;
        return g;
    }
    /* A leader's: guard() compares world and its session. 1: applied */
    static int lead_txn(int t, int s, int r, int g, const int *v, int q, int u)
    {
        if (now.bug != B_UNGUARDED && !(now.wrev == r && now.lead && now.lsess == s))
            return 0;
        if (t == T_B1 || t == T_B2) {
            for (int k = 0; k < 3; k++)
                put(k, (k > 0) == (t == T_B2) ? v[k] : 0, g);
            return 1;
        }
        if (t == T_END || t == T_CLAIM)
            now.wgen = number(g);
        if (t == T_END)
            now.wph = FORMING;
        if (t == T_END || t == T_CLEAR)
            now.wnext = now.wgo = 0;
        if (t == T_NEXT)
            now.wnext = number(g);
        if (t == T_GO)
            now.wgo = 1;
        if (t == T_DONE || t == T_FAIL)
            end(t == T_DONE ? DONE : FAILED);
        if (t == T_SEAL) {
            wrong(BAD_CHARGE, u && !now.genuine); /* a lost node's victims are never charged */
            now.wused += u;
            seal(g, v);
        }
        now.wby = q / 4;
        now.wseq = q % 4;
        now.wrev++;
        return 1;
    }
    static int txn(int t, int s, int r, int g, int x, int y, int z, int q, int u)
    {
        const int v[3] = {x, y, z};

        if (t == T_RES) {
            if ((now.fence != g && now.bug != B_RESULT_NOT_FENCED) || now.resg[s] == g)
                return 0;
            wrong(BAD_RESULT, g != now.wlast || now.fin);
            now.resg[s] = g;
            now.resv[s] = x;
            return 1;
        }
        if (t == T_LEFT) {
            if (!now.reg[s] || now.mrev[s] != r)
                return 0;
            now.left[s] = g;
            now.busy[s] = x;
            now.prep[s] = y;
            now.mrev[s] = (now.mrev[s] + 1) % 16;
            return 1;
        }
        if (t == T_CKPT) {
            if (now.fence != g && now.bug != B_COMMIT_NOT_FENCED)
                return 0;
            wrong(BAD_COMMIT, g != now.wlast || now.fin);
            return 1;
        }
        return lead_txn(t, s, r, g, v, q, u);
    }

    /* ---- this node: rdzv_node.c, rdzv_workers.c, on the world that it sees ---- */
    static int vph(int n) { return now.view ? now.vph[n] : now.wph; }
    static int vgen(int n) { return now.view ? now.vgen[n] : now.wgen; }
    static int vnext(int n) { return now.view ? now.vnext[n] : now.wnext; }
    static int vlast(int n) { return now.view ? now.vlast[n] : now.wlast; }
    static int vgo(int n) { return now.view ? now.vgo[n] : now.wgo; }

    static int over(void) { return now.wph == DONE || now.wph == FAILED; }
    static int is_in(int n) { return now.alive[n] && now.reg[n] && now.minc[n] == now.inc[n]; }
    static int vterm(int n) { return vph(n) == DONE || vph(n) == FAILED; }
    static int assigned(int n)
    {
        return vph(n) == SEALED && ((now.ag[n] == vgen(n) && (now.ai[n] == now.inc[n] || now.bug == B_INCARNATION_IGNORED)) ||
                                    (now.pg[n] == vgen(n) && now.pr[n] && now.pi[n] == now.inc[n]));
    }
    static int superseded(int n)
    {
        if (!now.alive[n] || !now.rg[n])
            return 0;
        if (now.pre[n] && vnext(n) != now.rg[n] && !(vph(n) == SEALED && vgen(n) == now.rg[n]))
            return 1;
        return vterm(n) || vgen(n) > now.rg[n];
    }
    /* notice_workers(): a planned change wants them to leave */
    static int asked_to_leave(int n)
    {
        return now.alive[n] && now.rg[n] && !now.pre[n] && vph(n) == SEALED && vgo(n) && vnext(n) && vgen(n) == now.rg[n];
    }
    static int may_start(int n)
    {
        if (!is_in(n) || !assigned(n))
            return 0;
        if (now.rg[n])
            return now.pre[n] && now.rg[n] == vgen(n);
        return vgen(n) > now.nl[n] || (now.bug == B_START_AGAIN && vgen(n) == now.nl[n]);
    }
    static int may_prepare(int n)
    {
        return is_in(n) && !now.rg[n] && now.planned && vph(n) == SEALED && vnext(n) && now.ag[n] == vnext(n) &&
               now.ai[n] == now.inc[n] && vnext(n) > now.nl[n] && !assigned(n);
    }
    static int as_good_as_left(int n)
    {
        return now.alive[n] && (!now.rg[n] || now.bug == B_LEFT_BEFORE_STOP) && vph(n) == FORMING && vlast(n) > now.nl[n];
    }
    static int record_differs(int n)
    {
        return is_in(n) && !over() && (!now.fgen[n] || now.bug == B_LEFT_BEFORE_RESULT) &&
               (now.left[n] != now.nl[n] || now.prep[n] != now.np[n]);
    }
    /* The right rank in the sealed plan. Who sees an old world may start in a generation that is over, and is fenced. */
    static void start(int n)
    {
        int rank = now.ag[n] == vgen(n) ? now.ar[n] : now.pr[n];

        wrong(BAD_START, vgen(n) == now.wlast && (now.plan_[n] & 3) != rank);
        wrong(BAD_START, vgen(n) == now.wlast && now.plan_[n] >> 2 != now.inc[n]);
        wrong(BAD_START, now.nl[n] >= vgen(n));
        now.rg[n] = vgen(n);
        now.pre[n] = 0;
    }
    static void leave(int n)
    {
        now.nl[n] = now.rg[n] > now.nl[n] ? now.rg[n] : now.nl[n];
        now.rg[n] = now.pre[n] = 0;
    }
    static void rest(int n)
    {
        now.lst[n] = now.lrev[n] = now.lgen[n] = now.lu[n] = now.lah[n] = 0;
        now.lp[n].a[0] = now.lp[n].a[1] = now.lp[n].a[2] = 0;
    }
    static void look(int n)
    {
        now.vph[n] = now.wph;
        now.vgen[n] = now.wgen;
        now.vlast[n] = now.wlast;
        now.vnext[n] = now.wnext;
        now.vgo[n] = now.wgo;
    }
    static int sees_less(int n)
    {
        return now.view && now.alive[n] && (now.vph[n] != now.wph || now.vgen[n] != now.wgen || now.vlast[n] != now.wlast ||
                                            now.vnext[n] != now.wnext || now.vgo[n] != now.wgo);
    }
    static void die(int n)
    {
        if (now.rg[n] && !now.pre[n])
            now.lossy |= 1 << now.rg[n];
        else if (now.wph == SEALED && now.plan_[n] && now.plan_[n] >> 2 == now.inc[n] && now.nl[n] < now.wlast)
            now.lossy |= 1 << now.wlast;
        now.alive[n] = now.pre[n] = now.rg[n] = now.nl[n] = now.np[n] = now.fgen[n] = now.fval[n] = 0;
        now.lmy[n] = now.lseq[n] = now.lfr[n] = 0;
        now.vph[n] = FORMING;
        now.vgen[n] = now.vlast[n] = now.vnext[n] = now.vgo[n] = 0;
        rest(n);
    }
    static void unregister(int n)
    {
        now.reg[n] = 0;
        now.mrev[n] = (now.mrev[n] + 1) % 16;
        if (now.lead == n + 1)
            now.lead = 0;
    }
    static int may_register(int n)
    {
        return now.alive[n] && !over() && !now.reg[n] && !(now.bug == B_NO_REREGISTER && now.mrev[n] && now.minc[n] == now.inc[n]);
    }
    static void enroll(int n)
    {
        now.reg[n] = 1;
        now.minc[n] = now.inc[n];
        now.left[n] = now.nl[n];
        now.busy[n] = now.rg[n];
        now.prep[n] = now.np[n];
        now.mrev[n] = (now.mrev[n] + 1) % 16;
    }
    static int from_env(const char *name, int otherwise)
    {
        extern char *getenv(const char *);
        const char *text = getenv(name);

        return text && *text ? atoi(text) : otherwise;
    }
    static void set_up(void)
    {
        int members = from_env("MEMBERS", 3);

        now.nlease = from_env("NLEASE", 0); /* leases lost by nodes that live */
        now.ncrash = from_env("NCRASH", 0); /* agents killed */
        now.nrest = from_env("NREST", 0);   /* of them, come back as another incarnation */
        now.nfail = from_env("NFAIL", 0);   /* failures of workers */
        now.ndly = from_env("NDLY", 0);     /* transactions without an answer, or late */
        now.nck = from_env("NCK", 0);       /* commits */
        now.ntime = from_env("NTIME", 0);   /* deadlines that pass: ready_us of world, time of a planned change */
        now.nprep = from_env("NPREP", 0);   /* newcomers whose workers fail ahead of a change */
        now.view = from_env("VIEW", 0);     /* nodes act on a world that may be old */
        now.planned = from_env("PLANNED", 1); /* workers can take part in planned changes */
        now.min_ = from_env("MIN", 2);
        now.bug = from_env("BUG", 0);
        for (int k = 0; k < 3; k++) {
            now.alive[k] = 1;
            now.vph[k] = FORMING;
        }
        if (!members) /* an empty store; else generation 1 is sealed */
            return;
        now.wph = SEALED;
        now.wlast = now.fence = now.lead = now.lsess = now.lmy[0] = 1;
        for (int k = 0; k < members; k++) {
            now.reg[k] = now.mrev[k] = now.ag[k] = 1;
            now.ar[k] = now.plan_[k] = k + 1;
        }
    }
/* spin takes no calls in an expression of C, but names */
\#define IS_MOVE        move(Pnode->n)
\#define IS_LATE        move_late(Pnode->n)
\#define IS_PLAN        plan_holds(Pnode->n)
\#define IS_CHARGE      charge()
\#define IS_IN          is_in(Pnode->n)
\#define IS_SUPERSEDED  superseded(Pnode->n)
\#define IS_ASKED       asked_to_leave(Pnode->n)
\#define IS_START       may_start(Pnode->n)
\#define IS_PREPARE     may_prepare(Pnode->n)
\#define IS_LEFT        as_good_as_left(Pnode->n)
\#define IS_RECORD      record_differs(Pnode->n)
\#define IS_REGISTER    may_register(Pnode->n)
\#define IS_BLIND       sees_less(Pnode->n)
};

#define MOVE  c_expr { IS_MOVE }
#define LATE  c_expr { IS_LATE }
#define HOLDS c_expr { IS_PLAN }

#define WRITTEN (ok == 1 || (ok == 2 && bug == B_BATCH_UNKNOWN))

inline decide(t, g) { lst[n] = t; lrev[n] = wrev; lgen[n] = g }
/* One transaction of a node, in a lane of its own: once, at once, without an answer, or late. ok: 1 applied, 2 unknown, 0 refused */
inline send(t, s, r, g, x, y, z, q, u) {
  if
  :: ok = 1
  :: ndly > 0 -> ndly--; ok = 2
  :: ndly > 0 && len(net) == 0 -> ndly--; ok = 3
  fi;
  if
  :: ok == 3 -> net!t,s,r,g,x,y,z,q,u; ok = 2
  :: else -> tt = t; ts = s; tr = r; tg = g; tx = x; ty = y; tz = z; tq = q; tu = u;
       c_code { now.ok = txn(Pnode->tt, Pnode->ts, Pnode->tr, Pnode->tg, Pnode->tx, Pnode->ty, Pnode->tz, Pnode->tq, Pnode->tu) ? now.ok : now.ok == 2 ? 2 : 0; };
       tt = 0; ts = 0; tr = 0; tg = 0; tx = 0; ty = 0; tz = 0; tq = 0; tu = 0; assert(bad == 0)
  fi
}
active proctype late() {
  byte t, s, r, g, x, y, z, q; bit u;
end:
  do
  :: atomic { net?t,s,r,g,x,y,z,q,u -> c_code { txn(Plate->t, Plate->s, Plate->r, Plate->g, Plate->x, Plate->y, Plate->z, Plate->q, Plate->u); };
       t=0; s=0; r=0; g=0; x=0; y=0; z=0; q=0; u=0; assert(bad == 0) }
  od
}

proctype node(byte n) {
  byte tt, ts, tr, tg, tx, ty, tz, tq; bit tu;
end:
  do
  /* -- this node: rdzv_node.c, rdzv_workers.c, rdzv_elect.c -- */
  :: atomic { alive[n] && !TERM && reg[n] && minc[n] != inc[n] -> c_code { unregister(Pnode->n); } }             /* evict() */
  :: atomic { c_expr { IS_REGISTER } -> c_code { enroll(Pnode->n); } }
  :: atomic { c_expr { IS_IN } && lead == 0 && !TERM && !(bug == B_NO_TAKEOVER && lsess > 0) ->
       lead = n+1; lsess++; lmy[n] = lsess; lfr[n] = 0; c_code { rest(Pnode->n); } }
  :: atomic { c_expr { IS_BLIND } -> c_code { look(Pnode->n); } }
  :: atomic { c_expr { IS_SUPERSEDED } -> c_code { leave(Pnode->n); } }
  :: atomic { c_expr { IS_ASKED } -> c_code { leave(Pnode->n); } }
  :: atomic { c_expr { IS_LEFT } -> c_code { now.nl[Pnode->n] = vlast(Pnode->n); } }
  :: atomic { c_expr { IS_RECORD } -> send(T_LEFT, n, (mrev[n]), (nl[n]), (rg[n]), (np[n]), 0, 0, 0); ok = 0 }
  :: atomic { c_expr { IS_START } -> c_code { start(Pnode->n); }; assert(bad == 0) }
  :: atomic { c_expr { IS_PREPARE } -> c_code { now.rg[Pnode->n] = vnext(Pnode->n); now.pre[Pnode->n] = 1; } }
  :: atomic { alive[n] && pre[n] && np[n] != rg[n] -> np[n] = rg[n] }                                            /* their workers are up, */
  :: atomic { alive[n] && pre[n] && nprep > 0 -> nprep--; c_code { leave(Pnode->n); } }                          /* or fail */
  :: atomic { bug == B_PREPARED_STARTS && alive[n] && pre[n] -> pre[n] = 0 }
  /* -- workers: how a generation ends here; commits of rank 0 -- */
  :: atomic { alive[n] && rg[n] != 0 && !pre[n] && rg[n] == wlast && !TERM && fgen[n] == 0 && nfail > 0 ->
       nfail--; genuine = 1; fgen[n] = rg[n]; fval[n] = 2; c_code { leave(Pnode->n); } }
  :: atomic { alive[n] && rg[n] != 0 && !pre[n] && fgen[n] == 0 && ((lossy >> rg[n]) & 1) -> fgen[n] = rg[n]; fval[n] = 2; c_code { leave(Pnode->n); } }
  :: atomic { alive[n] && rg[n] != 0 && !pre[n] && rg[n] == wlast && wph == SEALED && fgen[n] == 0 -> fgen[n] = rg[n]; fval[n] = 1; c_code { leave(Pnode->n); } }
  :: atomic { alive[n] && fgen[n] != 0 && !TERM && resg[n] != fgen[n] && (fence == fgen[n] || bug == B_RESULT_NOT_FENCED) ->
       send(T_RES, n, 0, (fgen[n]), (fval[n]), 0, 0, 0, 0); ok = 0 }
  :: atomic { alive[n] && fgen[n] != 0 && (TERM || fence != fgen[n] || resg[n] == fgen[n]) -> fgen[n] = 0; fval[n] = 0 }
  :: atomic { alive[n] && rg[n] != 0 && !pre[n] && nck > 0 -> nck--; send(T_CKPT, n, 0, (rg[n]), 0, 0, 0, 0, 0); ok = 0 }
  /* -- faults -- */
  :: atomic { alive[n] && reg[n] && nlease > 0 && !TERM -> nlease--; c_code { unregister(Pnode->n); } }
  :: atomic { alive[n] && ncrash > 0 && !TERM -> ncrash--; c_code { die(Pnode->n); } }
  :: atomic { !alive[n] && reg[n] && minc[n] == inc[n] -> c_code { unregister(Pnode->n); } }                     /* its lease ends */
  :: atomic { !alive[n] && nrest > 0 && !TERM -> nrest--; alive[n] = 1; inc[n]++ }
  /* -- the leader: rdzv_lead.c, rdzv_form.c, rdzv_ahead.c. It decides on what it sees now ... -- */
  :: atomic { alive[n] && lmy[n] != 0 && (TERM || (lst[n] == 0 && !(lead == n+1 && lsess == lmy[n]))) -> lmy[n] = 0; lfr[n] = 0; c_code { rest(Pnode->n); } }
  :: atomic { (wph == SEALED && MOVE != 0 && MOVE != D_WAIT) -> c_code { now.move_ = move(Pnode->n); };
       if
       :: move_ == T_END || move_ == T_CLEAR || move_ == T_NEXT -> c_code { rest(Pnode->n); }
       :: move_ == T_B1 -> lu[n] = 1
       :: else
       fi;
       if :: move_ == T_NEXT -> c_code { plan(Pnode->n, registered); } :: else fi;
       if :: move_ == T_B1 || move_ == T_SEAL -> decide(move_, wnext) :: else -> decide(move_, (wtop + 1)) fi; move_ = 0 }
  :: atomic { MOVE == D_WAIT && ntime > 0 -> ntime--; c_code { rest(Pnode->n); };
       if :: wgo -> decide(T_END, (wtop + 1)) :: else -> decide(T_CLEAR, 0) fi }
  :: atomic { wph == FORMING && (MOVE != 0 || (ntime > 0 && LATE != 0)) ->
       c_code { now.move_ = move(Pnode->n); };
       if :: move_ == 0 -> ntime--; c_code { now.move_ = move_late(Pnode->n); } :: else fi;
       if
       :: move_ == T_B1 -> c_code { rest(Pnode->n); plan(Pnode->n, fit); }; lfr[n] = 0; decide(T_B1, wgen)
       :: else -> decide(move_, (wtop + 1))
       fi; move_ = 0 }
  /* ... and sends later. Batches are not writes of world. */
  :: atomic { lah[n] == 0 && (lst[n] == T_B1 || lst[n] == T_B2 || lst[n] == D_SEAL) && !HOLDS -> c_code { rest(Pnode->n); } }
  :: atomic { lst[n] == D_SEAL && HOLDS ->                                                                       /* seal() judges anew */
       if :: c_expr { IS_CHARGE } && wused == BUDGET -> c_code { rest(Pnode->n); }; decide(T_FAIL, 0)
          :: else -> c_code { now.lu[Pnode->n] = charge(); }; lst[n] = T_SEAL fi }
  :: atomic { alive[n] && lst[n] != 0 && lst[n] != D_SEAL ->
       if :: lst[n] == T_B1 || lst[n] == T_B2 -> skip
          :: else -> lseq[n] = lseq[n] % 3 + 1; lfr[n] = lseq[n] fi;
       if :: lst[n] == T_NEXT -> lah[n] = lgen[n] :: else fi;
       send((lst[n]), (lmy[n]), (lrev[n]), (lgen[n]), (lp[n].a[0]), (lp[n].a[1]), (lp[n].a[2]), ((n + 1 + 3*inc[n]) * 4 + lseq[n]), (lu[n] && lah[n] == 0));
       if
       :: lst[n] == T_NEXT || lst[n] == T_GO -> lst[n] = 0; lrev[n] = 0; lgen[n] = 0                               /* the plan stays */
       :: lst[n] == T_B1 && WRITTEN -> lst[n] = T_B2
       :: lst[n] == T_B2 && WRITTEN -> if :: lah[n] == 0 -> lst[n] = D_SEAL :: else -> lst[n] = 0; lrev[n] = 0; lgen[n] = 0 fi
       :: else -> if :: lst[n] == T_SEAL -> lfr[n] = 0 :: else fi; c_code { rest(Pnode->n); }
       fi; ok = 0 }
  od
}

#define AL (alive[0] + alive[1] + alive[2])
active proctype monitor() {
end:
  do :: timeout -> assert(TERM || AL < min_); break od        /* nothing more can happen: there is a verdict, or too few agents */
}
init { atomic { c_code { set_up(); }; run node(0); run node(1); run node(2) } }
