package orders

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log"
	"net/http"

	"github.com/jmoiron/sqlx"

	"order-pipeline/events"

	"github.com/millrace-go/millrace/outbox"
)

func (s *Service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.post)
	return mux
}

// Request is the body of POST /orders.
type Request struct {
	Item     int `json:"item"`
	Quantity int `json:"quantity"`
}

// Response is the answer.
type Response struct {
	Order int64 `json:"order"`
}

// post places an order. The header Idempotency-Key makes it safe to ask again: whoever got
// no answer, or an error of the server, repeats the request with the same key.
func (s *Service) post(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		http.Error(w, "the header Idempotency-Key is missing", http.StatusBadRequest)
		return
	}
	var request Request
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&request)
	if err != nil || request.Quantity < 1 {
		http.Error(w, "the body must be an item and a quantity", http.StatusBadRequest)
		return
	}
	id, err := s.place(r.Context(), key, request)
	switch {
	case errors.Is(err, errKeyReused):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case err != nil:
		log.Print("orders: ", err)
		http.Error(w, "try again, with the same Idempotency-Key", http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(Response{Order: id}) // a client that is gone asks again
	}
}

var errKeyReused = errors.New("this Idempotency-Key belongs to another order")

// place writes the order and its event in one transaction, unless the key is known.
func (s *Service) place(ctx context.Context, key string, r Request) (id int64, err error) {
	err = outbox.InTx(ctx, s.db, func(ctx context.Context, tx *sqlx.Tx) error {
		err := tx.GetContext(ctx, &id, `
			INSERT INTO orders (idempotency_key, item, quantity) VALUES ($1, $2, $3)
			ON CONFLICT (idempotency_key) DO NOTHING
			RETURNING id`, key, r.Item, r.Quantity)
		if errors.Is(err, sql.ErrNoRows) {
			id, err = known(ctx, tx, key, r)
			return err
		}
		if err != nil {
			return err
		}
		msg, err := events.New(ctx, events.OrderPlaced{Order: id, Item: r.Item, Quantity: r.Quantity})
		if err != nil {
			return err
		}
		return s.out.Publish(events.Orders, msg)
	})
	return id, err
}

// known returns the order that was placed with the key.
func known(ctx context.Context, tx *sqlx.Tx, key string, r Request) (id int64, err error) {
	err = tx.GetContext(ctx, &id, `
		SELECT id FROM orders WHERE idempotency_key = $1 AND item = $2 AND quantity = $3`,
		key, r.Item, r.Quantity)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errKeyReused
	}
	return id, err
}
