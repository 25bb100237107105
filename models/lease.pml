/* Lease, deadline and fence: two clients, one lock server, one resource that the lock protects.
 *
 * Time is a counter that may tick between any two steps, so every step can be early, late or paused for long. Each
 * request takes effect at some moment between its sending and its answer; an answer may be lost; a client may stop
 * for ever at any point. What is decided: see the two assertions marked CLAIM.
 *
 * The run is bounded: time stops at END, and at most GRANTS grants are made.
 *
 *   (no option)        the design: deadline from before the request, fence checked by the resource
 *   -DUNFENCED         the resource takes every write: CLAIM 2 fails, which is why fences exist
 *   -DFROM_REPLY       the deadline counts from the answer: CLAIM 1 fails
 *   -DNO_OWNER_CHECK   a release frees the lock of any holder: CLAIM 1 fails
 */
#define TTL   2
#ifndef END
#define END   6		/* when time stops */
#endif
#ifndef GRANTS
#define GRANTS 3	/* how many fences there are */
#endif
#define NOBODY 2

byte now;			/* the one clock; drift is the simulation's business */
byte holder = NOBODY;		/* the server's record */
byte expires;
byte fence;			/* the last one minted; only grows */
byte written;			/* fence of the last write that the resource took */

bool has[2];			/* a client's belief: it has a lease, of this fence, until this time */
byte token[2];
byte deadline[2];

#define believes(i) (has[i] && now < deadline[i])
#define taken       (holder != NOBODY && now < expires)

/* The server's verbs, each one step */

inline srv_acquire(i) {
	granted = false;
	if
	:: holder == i && taken -> expires = now + TTL; granted = true	/* asked before: the same fence again */
	:: !taken && fence < GRANTS -> holder = i; expires = now + TTL; fence++; granted = true
	:: else
	fi
}

inline srv_renew(i) {
	granted = false;
	if
	:: holder == i && taken && fence == token[i] -> expires = now + TTL; granted = true
	:: else
	fi
}

inline srv_release(i) {
#ifdef NO_OWNER_CHECK
	holder = NOBODY
#else
	if
	:: holder == i && fence == token[i] -> holder = NOBODY
	:: else
	fi
#endif
}

/* The resource */

inline write(i) {
#ifdef UNFENCED
	assert(token[i] >= written);	/* CLAIM 2: no write lands after one of a later holder */
	written = token[i]
#else
	if
	:: token[i] >= written -> written = token[i]
	:: else			/* refused: a later holder has written */
	fi;
	assert(written >= token[i])	/* CLAIM 2, by construction */
#endif
}

inline believe(i, asked) {
	has[i] = true;
#ifdef FROM_REPLY
	deadline[i] = now + TTL
#else
	deadline[i] = asked + TTL
#endif
}

proctype Client(byte i) {
	byte asked;
	bool granted;
	do
	:: now < END && !has[i] ->
		d_step { asked = now };
		atomic { srv_acquire(i); token[i] = (granted -> fence : token[i]) };
		if
		:: granted -> d_step {
				if
				:: now < asked + TTL -> believe(i, asked)
				:: else	/* the answer came too late to be of use */
				fi;
				asked = 0; granted = false
			}
		:: asked = 0; granted = false	/* refused, or the answer was lost: ask again with the same claim */
		fi
	:: has[i] && now < END ->			/* renew */
		d_step { asked = now };
		atomic { srv_renew(i) };
		if
		:: granted && believes(i) -> d_step { believe(i, asked); asked = 0; granted = false }
		:: asked = 0; granted = false	/* the answer was lost */
		fi
	:: believes(i) ->				/* looked at the clock, and now it may be paused before it writes */
		d_step { write(i) }
	:: has[i] ->					/* release, or stop believing because time is up */
		d_step { has[i] = false; deadline[i] = 0 };
		if
		:: d_step { srv_release(i) }
		:: skip				/* the request was lost */
		fi
	:: break				/* crash */
	od
}

proctype Time() {
	do
	:: now < END -> now++
	:: now == END -> break
	od
}

/* CLAIM 1: never two believers */
active proctype Watch() {
end:	do
	:: atomic { believes(0) && believes(1) -> assert(false) }
	od
}

init {
	atomic { run Client(0); run Client(1); run Time() }
}
