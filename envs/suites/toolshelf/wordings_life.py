"""Wordings for the services of computers, a house and public life; `wordings.py` explains the format."""

WORDINGS = """
= hosts | the machine {name}
? admin | the person who looks after {it}
? memory_gb | the gigabytes of memory in {it}
! change_host_admin | let {admin} look after {it}
! upgrade_memory | fit {it} with {memory_gb} gigabytes of memory
! drain_host | take the work off {it}, for maintenance

= deployments | the program {application}
? owner | the person to ask about {it}
? replicas | the number of copies of {it} that run
! deploy_version | roll {version} of {it} out
! scale_deployment | run {replicas} copies of {it}
! pause_rollout | stop rolling {it} out for the moment

= incidents | the outage "{title}"
? commander | the person who leads the work on {it}
? affected | the number of people who suffer from {it}
? started | the day on which {it} began
! set_severity | note that {it} is {severity}
! change_commander | have {commander} lead the work on {it}
! update_affected_users | note that {affected} people suffer from {it}
! resolve_incident | note that {it} is over

= alerts | the alarm rule "{name}"
? on_call | the person who is woken by {it}
? threshold | the percentage at which {it} fires
! tune_threshold | let {it} fire at {threshold} per cent
! set_on_call | have {on_call} woken by {it}
! mute_alert | keep {it} quiet

= certificates | the certificate of the site {domain}
? custodian | the person who renews {it}
? expires | the last day on which browsers accept {it}
! renew_certificate | let browsers accept {it} until {expires}
! change_custodian | say that {custodian} renews {it}
! revoke_certificate | declare {it} worthless, its key was stolen

= backups | the nightly copy of {database}
? operator | the person who checks {it}
? keep_days | the number of days for which {it} is kept
! set_retention | keep {it} for {keep_days} days
! change_backup_target | send {it} to this place: {target}
! disable_backup | make no more copies of {database}

= flags | the switch for the feature "{name}"
? reviewer | the person who decides on {it}
? percent | the share of people who see the feature "{name}", in per cent
! set_rollout_percent | show the feature "{name}" to {percent} per cent of people
! retire_feature_flag | remove {it}, nobody needs it

= bugs | the defect "{summary}"
? developer | the person who mends {it}
? points | the effort for {it}
! assign_bug | have {developer} mend {it}
! prioritise_bug | treat {it} as {priority}
! plan_bug | have {it} mended for {milestone}
! close_bug_wontfix | leave {it} as it is

= pipelines | the build of {repository}
? maintainer | the person who mends {it} when it fails
? timeout_min | the minutes after which {it} is stopped
! set_pipeline_timeout | stop {it} after {timeout_min} minutes
! change_maintainer | say that {maintainer} mends {it}
! disable_pipeline | do not test {repository} automatically any more

= domains | the internet name {name}
? owner | the person to whom {it} belongs
? renews | the day on which {it} must be paid again
? price | the yearly price of {it}
! renew_domain | pay for {it} until {renews}
! sell_domain | let {it} belong to {owner}
! transfer_domain | move {it} to {registrar}

= lights | the {name} of the family
? brightness | the brightness of {it}
! dim_lamp | let {it} shine with {brightness} per cent
! set_lamp_colour | let {it} shine {colour}
! set_lamp_timer | let {it} go off by itself after {off_after_min} minutes

= heating | the thermostat in the {room}
? target_celsius | the wanted temperature of the {room} by day
? night_celsius | the wanted temperature of the {room} at night
! set_temperature | make it {target_celsius} degrees in the {room} by day
! set_night_temperature | make it {night_celsius} degrees in the {room} at night
! set_heating_schedule | heat the {room} on these days: {schedule}

= pantry | the {name} at home
? portions | the number of portions of {it}
? best_before | the day until which {it} are good
! refill_food | note that we have bought {amount} more portions of {name}
! move_food | put {it} into this place: {place}

= recipes | the dish "{title}"
? cook | the person whose recipe {it} is
? servings | the number of people for whom {it} is enough
! scale_recipe | write {it} down for {servings} people
! set_cooking_time | note that {it} takes {cooking_min} minutes
! credit_recipe | write that {it} comes from {cook}

= chores | the household duty "{task}"
? person | the person whose turn it is with {it}
? next_day | the next day of {it}
! give_chore | make {it} the turn of {person}
! put_chore_off | do {it} on {next_day}
! set_chore_rhythm | do {it} every {every_days} days

= plants | the {name} at home
? water_ml | the millilitres of water that {it} gets
! set_water_amount | give {it} {water_ml} millilitres each time
! set_watering_rhythm | water {it} every {water_every_days} days
! repot_plant | let {it} stand in the {spot}

= appliances | the {name} in our house
? technician | the person who repairs {it}
? bought | the day on which {it} was bought
! extend_warranty | note that the maker repairs {it} for {warranty_months} months
! choose_technician | have {it} repaired by {technician}

= subscriptions | the subscription to {name}
? payer | the person who pays for {it}
? monthly | the monthly price of {it}
? renews | the day on which {it} goes on
! change_plan_price | note that {it} costs {monthly} euros a month
! change_payer | have {payer} pay for {it}
! cancel_subscription | do not read or watch {name} any more and end {it}

= doors | the smart lock of the {door}
? keyholder | the person who has the spare key of the {door}
? auto_lock_s | the seconds after which the {door} locks by itself
! entrust_spare_key | give the spare key of the {door} to {keyholder}
! set_auto_lock | let the {door} lock by itself after {auto_lock_s} seconds
! set_code_length | ask for {code_length} digits at the {door}

= fleet | the company car {plate}
? driver | the person who drives {it}
? depot | the city where {it} stands at night
? mileage | the kilometres on the clock of {it}
! assign_driver | hand {it} over to {driver}
! move_vehicle | let {it} stand in {depot} at night
! record_mileage | note that {it} has {mileage} kilometres on the clock
! register_vehicle | enter the new {model} {plate} for {driver} in {depot}, {mileage} kilometres on the clock

= parcels | the parcel {number}
? addressee | the person who is to get {it}
? courier | the person who carries {it}
? city | the city to which {it} goes
! redirect_parcel | send {it} to {city} instead
! change_courier | have {it} carried by {courier}
! correct_weight | note that {it} weighs {weight_g} grams
! dispatch_parcel | hand in {number} for {addressee} in {city}, {weight_g} grams, carried by {courier}

= clinic | the time of the patient {patient} at the doctor's
? doctor | the doctor who sees the patient {patient}
? day | the day on which the patient {patient} sees a doctor
? length_min | the minutes planned for the patient {patient}
! move_appointment | see the patient {patient} on {day}
! change_doctor | have the patient {patient} seen by {doctor}
! set_appointment_length | plan {length_min} minutes for the patient {patient}

= prescriptions | the slip {number} from the doctor
? patient | the person who takes the medicine on {it}
? dose_mg | the milligrams a day on {it}
! adjust_dose | change what is taken a day on {it} to {dose_mg} milligrams
! set_repeats | let the medicine on {it} be fetched {repeats} more times

= vet | the animal {name} at the vet's
? owner | the person who keeps {name} the animal
? weight_g | the grams that {name} the animal weighs
? vaccinated | the day of the last shot of {name} the animal
! record_animal_weight | note that {name} the animal weighs {weight_g} grams
! change_animal_owner | note that {name} the animal is now kept by {owner}
! record_vaccination | note that {name} the animal got its shot on {vaccinated}

= library | the book "{title}"
? author | the person who wrote {it}
? reader | the person who had {it} last
? due | the day on which {it} must be back
! extend_loan | let {it} be kept until {due}
! lend_book | give {it} to {reader} until {due}
! reshelve_book | put {it} in the place {shelf}
! acquire_book | add the new "{title}" by {author} to the library, in the place {shelf}

= courses | the lecture "{title}"
? lecturer | the person who gives {it}
? campus | the city where {it} is given
? places | the number of places in {it}
! change_lecturer | have {lecturer} give {it}
! set_course_credits | let students earn {credits} points in {it}
! set_course_places | admit {places} students to {it}

= exams | the examination of the student {student}
? examiner | the person who examines the student {student}
? day | the day on which the student {student} is examined
? points | the points of the student {student}
! regrade_exam | give the student {student} {points} points after all
! replace_examiner | have the student {student} examined by {examiner}
! move_exam | examine the student {student} on {day}

= gym | the membership of {member} in the sports club
? trainer | the person who advises {member} in the sports club
? monthly | the sum that {member} pays the sports club each month
? until | the day on which {it} ends
! change_membership_plan | let {member} have this in the sports club: {plan}
! prolong_membership | let {it} last until {until}
! assign_trainer | have {member} advised by {trainer} in the sports club

= museum | the artwork "{title}"
? artist | the person who made {it}
? restorer | the person who cleans {it}
? insured_for | the sum for which {it} is insured
! hang_artwork | show {it} in hall {hall}
! insure_artwork | protect {it} for {insured_for} euros
! commission_restorer | have {it} cleaned by {restorer}

= hotel | the hotel stay of {guest}
? arrival | the day on which {guest} comes to the hotel
? rate | the price a night of {it}
? nights | the number of nights of {it}
! change_hotel_room | give {guest} room {room_number} in the hotel
! lengthen_stay | let {guest} stay {nights} nights in the hotel
! set_room_rate | ask {guest} {rate} euros a night in the hotel

= events | the event "{title}"
? artist | the person on the stage of {it}
? city | the city of {it}
? day | the day of {it}
? tickets_left | the number of tickets left for {it}
! move_event | hold {it} on {day}
! rebook_artist | put {artist} on the stage of {it}
! release_tickets | offer {amount} more tickets for {it}
"""
